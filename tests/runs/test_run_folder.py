import errno
import json
import os
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support import made_tables

from normprobe.errors import NormprobeError
from normprobe.runs.run_folder import RunFolder, default_run_path, read_record, read_table


def new_run(path, **record):
    return RunFolder.create(path, overwrite=False, record=record)


def part(*samples):
    return pd.DataFrame({"sample_id": samples, "mean": 0.1, "bins": [[1, 2]] * len(samples)})


def status(path):
    return json.loads((path / "run.json").read_text())["status"]


def files(path):
    found = (file for file in path.rglob("*") if file.is_file() and file.name != ".lock")
    return sorted(str(file.relative_to(path)) for file in found)


def no_space(monkeypatch, fails):
    """Let the disk fill up at the first file whose name holds ``fails``."""

    def sync(descriptor):
        if fails in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            os.ftruncate(descriptor, 7)
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", sync)


# --- a run from start to end --------------------------------------------------------------------


def test_parts_are_merged_at_the_end(tmp_path):
    run = new_run(tmp_path / "run", model="a/b")
    assert status(run.path) == "partial"
    run.append(part("a", "b"))
    run.append(part("c"))
    run.append(part())
    assert files(run.path) == [
        "run.json",
        "samples/part-00000.parquet",
        "samples/part-00001.parquet",
    ]
    assert list(run.rows()["sample_id"]) == ["a", "b", "c"]
    run.finish(seconds=1.5)
    assert files(run.path) == ["run.json", "samples/samples.parquet"]
    again = RunFolder.open(run.path)
    assert list(again.rows()["sample_id"]) == ["a", "b", "c"]
    assert list(again.rows()["bins"][0]) == [1, 2]
    assert again.record["status"] == "complete"
    assert again.record["seconds"] == 1.5
    assert again.record["model"] == "a/b"


def test_of_the_rows_some_columns(tmp_path):
    run = new_run(tmp_path / "run")
    for sample in "ab":
        run.append(part(sample))
    assert list(run.rows(["mean", "absent"])) == ["mean"]
    run.finish()
    assert run.rows(["sample_id"])["sample_id"].tolist() == ["a", "b"]
    assert run.rows([]).empty


def test_a_run_without_samples_finishes(tmp_path):
    run = new_run(tmp_path)
    run.finish()
    assert status(tmp_path) == "complete"
    assert run.rows().empty


def test_a_column_that_is_empty_in_one_part(tmp_path):
    run = new_run(tmp_path)
    run.append(pd.DataFrame({"sample_id": "a", "x": [np.nan], "bins": [[]], "text": [None]}))
    run.append(pd.DataFrame({"sample_id": "b", "x": [2.0], "bins": [[3]], "text": ["b"]}))
    rows = run.rows()
    assert list(rows["bins"].map(list)) == [[], [3]]
    assert rows["text"][1] == "b"
    assert rows["x"].dtype == float


def test_warnings_are_kept_once(tmp_path):
    run = new_run(tmp_path)
    for text in ("slow attention", "slow attention", "bf16"):
        run.add_warning(text)
    assert RunFolder.open(tmp_path).record["warnings"] == ["slow attention", "bf16"]


# --- interruptions ------------------------------------------------------------------------------


def test_a_full_disk_keeps_the_complete_parts(tmp_path, monkeypatch):
    run = new_run(tmp_path)
    run.append(part("a"))
    no_space(monkeypatch, "part-00001")
    with pytest.raises(NormprobeError) as caught:
        run.append(part("b"))
    assert "no space left in" in caught.value.problem
    assert str(tmp_path) in caught.value.problem
    assert files(tmp_path) == ["run.json", "samples/part-00000.parquet"]
    assert status(tmp_path) == "partial"
    monkeypatch.undo()
    resumed = RunFolder.open(tmp_path)
    resumed.append(part("b"))
    assert list(resumed.rows()["sample_id"]) == ["a", "b"]


def test_a_full_disk_at_the_merge_keeps_the_parts(tmp_path, monkeypatch):
    run = new_run(tmp_path)
    run.append(part("a"))
    run.append(part("b"))
    no_space(monkeypatch, "samples.parquet")
    with pytest.raises(NormprobeError, match="no space left"):
        run.finish()
    assert len(files(tmp_path)) == 3
    assert status(tmp_path) == "partial"


def test_an_exception_while_rows_are_made(tmp_path):
    run = new_run(tmp_path)

    def batches():
        yield part("a")
        raise RuntimeError("CUDA out of memory")

    with pytest.raises(RuntimeError):
        for rows in batches():
            run.append(rows)
    assert status(tmp_path) == "partial"
    assert list(RunFolder.open(tmp_path).rows()["sample_id"]) == ["a"]


def test_killed_between_merge_and_clean_up(tmp_path, monkeypatch):
    run = new_run(tmp_path)
    run.append(part("a"))
    run.append(part("b"))

    def killed(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        run.finish()
    monkeypatch.undo()
    again = RunFolder.open(tmp_path)
    assert list(again.rows()["sample_id"]) == ["a", "b"]  # no row twice
    again.append(part("c"))
    assert list(again.rows()["sample_id"]) == ["a", "b", "c"]
    again.finish()
    assert files(tmp_path) == ["run.json", "samples/samples.parquet"]


def test_a_complete_run_can_go_on(tmp_path):
    run = new_run(tmp_path)
    run.append(part("a"))
    run.finish()
    again = RunFolder.open(tmp_path)
    again.append(part("b"))
    assert status(tmp_path) == "partial"
    again.finish()
    assert list(RunFolder.open(tmp_path).rows()["sample_id"]) == ["a", "b"]


def test_finishing_twice_changes_nothing(tmp_path):
    run = new_run(tmp_path)
    run.append(part("a"))
    run.finish()
    run.finish()
    assert list(run.rows()["sample_id"]) == ["a"]


# --- what may be replaced -----------------------------------------------------------------------


def test_an_existing_run_is_refused(tmp_path):
    new_run(tmp_path)
    with pytest.raises(NormprobeError) as caught:
        new_run(tmp_path)
    assert caught.value.problem == f"{tmp_path} exists"
    assert caught.value.remedy == "choose another --output or pass --overwrite"


@pytest.mark.parametrize(
    "foreign",
    [{"thesis.tex": "x"}, {"run.json": "{}", "a.txt": "x"}, {"run.json": "not json"}],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_foreign_folder_is_never_touched(tmp_path, foreign, overwrite):
    for name, text in foreign.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(NormprobeError, match="exists"):
        RunFolder.create(tmp_path, overwrite=overwrite, record={})
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == foreign


def test_a_run_that_was_killed_before_its_record_begins_again(tmp_path):
    (tmp_path / ".run.json.tmp").write_text("{")
    assert RunFolder.create(tmp_path, overwrite=False, record={}).path == tmp_path
    assert files(tmp_path) == ["run.json"]


def test_a_folder_that_is_half_deleted_is_still_a_run_folder(tmp_path, monkeypatch):
    run = new_run(tmp_path)
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "layers.png").write_bytes(b"x")
    run.unlock()
    remove = Path.rmdir
    killed = []

    def rmdir(folder: Path) -> None:
        killed.append(folder.name)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rmdir", rmdir)
    with pytest.raises(KeyboardInterrupt):
        RunFolder.create(tmp_path, overwrite=True, record={})
    monkeypatch.setattr(Path, "rmdir", remove)
    assert killed == ["samples"]
    RunFolder.create(tmp_path, overwrite=True, record={})
    assert files(tmp_path) == ["run.json"]


def test_overwrite_deletes_only_what_was_written(tmp_path):
    run = new_run(tmp_path)
    run.append(part("a"))
    run.write_table("layers", part("a"))
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "layers.png").write_bytes(b"x")
    (tmp_path / "notes.csv").write_text("mine")
    (tmp_path / "plots" / "notes.txt").write_text("mine")
    run.unlock()
    RunFolder.create(tmp_path, overwrite=True, record={})
    assert files(tmp_path) == ["notes.csv", "plots/notes.txt", "run.json"]
    assert RunFolder.open(tmp_path).record["files"] == []


def test_overwrite_stays_inside_the_folder(tmp_path):
    outside = tmp_path / "outside"
    (outside / "samples").mkdir(parents=True)
    (outside / "samples" / "part-00000.parquet").write_text("mine")
    (outside / "precious.csv").write_text("mine")
    run = new_run(tmp_path / "run")
    run.note(files=["../outside/precious.csv"])
    (run.path / "samples").symlink_to(outside / "samples")
    run.unlock()
    RunFolder.create(run.path, overwrite=True, record={})
    assert files(outside) == ["precious.csv", "samples/part-00000.parquet"]


def test_overwrite_of_nothing_is_a_fresh_run(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new/deep"):
        assert RunFolder.create(tmp_path / name, overwrite=True, record={}).path.is_dir()


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(NormprobeError, match="exists and is a file"):
        RunFolder.create(tmp_path / "run", overwrite=True, record={})


def test_a_folder_that_may_not_be_made(tmp_path, monkeypatch):
    def refused(self, *args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(NormprobeError, match="run is not writable"):
        new_run(tmp_path / "run")


def test_opening_what_is_no_run(tmp_path):
    assert read_record(tmp_path) is None
    with pytest.raises(NormprobeError, match="not a run folder"):
        RunFolder.open(tmp_path)


def test_names_cannot_leave_the_folder(tmp_path):
    run = new_run(tmp_path / "run")
    for name in ("../layers", "a/b"):
        with pytest.raises(ValueError, match="plain file name"):
            run.write_table(name, part("a"))


# --- tables -------------------------------------------------------------------------------------


def test_tables_survive_the_round_trip_exactly(tmp_path):
    run = new_run(tmp_path)
    for name, table in (
        ("layers", made_tables.layers()),
        ("interface", made_tables.interface()),
        ("embeddings", made_tables.embeddings("text", "visual")),
        ("tokens", made_tables.tokens("text", "visual")),
        ("histogram", made_tables.histogram()),
    ):
        run.write_table(name, table)
        pd.testing.assert_frame_equal(read_table(tmp_path, name), table, check_dtype=False)


def test_missing_values_are_empty_fields(tmp_path):
    run = new_run(tmp_path)
    run.write_table("layers", pd.DataFrame({"layer": [0], "angle_mean": [np.nan]}))
    assert (tmp_path / "layers.csv").read_text() == "layer,angle_mean\n0,\n"


@pytest.mark.parametrize("token", ["\r", "a\rb", "\n", ",", '"', "nan", "null", "1", "\x00", ""])
def test_tokens_that_csv_could_misread(tmp_path, token):
    run = new_run(tmp_path)
    run.write_table("tokens", pd.DataFrame({"token": [token, "x"], "norm": [0.5, np.nan]}))
    table = read_table(tmp_path, "tokens")
    assert list(table["token"]) == [token, "x"]
    assert table["norm"].isna().sum() == 1


def test_a_missing_table_is_a_known_failure(tmp_path):
    with pytest.raises(NormprobeError, match=r"holds no layers\.csv"):
        read_table(tmp_path, "layers")


# --- where runs go ------------------------------------------------------------------------------

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("model", "folder"),
    [
        ("llava-hf/llava-1.5-7b-hf", "llava-hf--llava-1.5-7b-hf"),
        ("specimen", "specimen"),
        ("/data/checkpoints/run 7/", "run-7"),
        ("./out/checkpoint-500", "checkpoint-500"),
        ("../checkpoint", "checkpoint"),
        ("~/models/qwen", "qwen"),
        ("a/b/c", "c"),
        ("a/..", None),
        ("/", "model"),
        ("..", None),
        ("...", "model"),
        ("C:\\models\\llava", "llava"),
        ("组织/模型", "组织--模型"),
        ("a/b\n[red]c", "a--b-red-c"),
    ],
)
def test_default_path(model, folder):
    path = default_run_path(model, "layers", "mmbench", NOW)
    assert path.name == "layers-mmbench-20260304T050607Z"
    assert len(path.parts) == 3
    assert path.parts[0] == "runs"
    assert ".." not in path.parts
    if folder is not None:
        assert path.parts[1] == folder


def test_a_local_checkpoint_that_looks_like_a_hub_id(tmp_path, monkeypatch):
    (tmp_path / "out" / "last").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert default_run_path("out/last", "layers", None, NOW).parts[1] == "last"


def test_default_path_names_utc_and_the_data_file():
    east = NOW.astimezone(timezone(timedelta(hours=9)))
    path = default_run_path("specimen", "layers", "/data/my questions.tsv", east)
    assert path.name == "layers-my-questions.tsv-20260304T050607Z"
    assert default_run_path("m", "embeddings", None, NOW).name == "embeddings-20260304T050607Z"


def test_very_long_names_are_cut():
    path = default_run_path("模" * 300, "layers", "x" * 300, NOW)
    assert all(len(name.encode()) < 255 for name in path.parts)
