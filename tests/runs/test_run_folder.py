"""A run in memory or in a folder: its rows, what may be replaced, where it goes, what is found."""

import errno
import inspect
import json
import os
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
from PIL import Image
from support import made_tables
from support.flat import tidied
from support.made_runs import run_folder

from normprobe.errors import NormprobeError
from normprobe.runs.run_folder import (
    COMPLETE,
    MERGED_FILE,
    PARTIAL,
    RunFolder,
    RunStore,
    SampleParts,
    default_run_path,
    read_record,
    read_table,
    runs_below,
)
from normprobe.schema import SCHEMA_VERSION

RECORD = {"command": "layers", "model": "org/model", "schema_version": SCHEMA_VERSION}


@pytest.fixture(params=["memory", "folder"])
def run(request, tmp_path):
    if request.param == "memory":
        return RunStore(RECORD)
    return RunFolder.create(tmp_path / "run", overwrite=False, record=RECORD)


def new_run(path, **record):
    record = {"schema_version": SCHEMA_VERSION, **record}
    return RunFolder.create(path, overwrite=False, record=record)


def part(*samples):
    return pd.DataFrame({"sample_id": samples, "mean": 0.1, "bins": [[1, 2]] * len(samples)})


def status(path):
    return json.loads((path / "run.json").read_text())["status"]


def files(path):
    found = (file for file in path.rglob("*") if file.is_file() and file.name != ".lock")
    return sorted(str(file.relative_to(path)) for file in found)


def names_of(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


# --- a run, in memory and in a folder -----------------------------------------------------------


def test_a_folder_offers_what_memory_offers():
    assert names_of(RunStore) <= names_of(RunFolder)
    for name in names_of(RunStore):
        ours, theirs = getattr(RunStore, name), getattr(RunFolder, name)
        if inspect.isfunction(ours):
            assert list(inspect.signature(ours).parameters) == list(
                inspect.signature(theirs).parameters
            ), name


def test_it_begins_partial_and_empty(run):
    assert run.record == {**RECORD, "status": PARTIAL, "warnings": [], "files": []}
    assert (run.command, run.writer, run.table_names) == ("layers", 0, [])
    assert run.rows().empty
    assert run.sample_ids() == set()
    assert list(run.images()) == []
    for absent in (run.table, run.image):
        with pytest.raises(NormprobeError):
            absent("layers")


def test_rows_keep_their_order_and_outlast_the_end(run):
    for rows in (part("a", "b"), part(), part("c")):
        run.append(rows)
    for _ in range(2):
        run.finish(seconds=1.5)
        assert run.rows()["sample_id"].tolist() == ["a", "b", "c"]
        assert run.rows()["bins"].map(list).tolist() == [[1, 2]] * 3
        assert run.rows().index.tolist() == [0, 1, 2]
        assert run.sample_ids() == {"a", "b", "c"}
        assert list(run.rows(["mean", "absent"])) == ["mean"]
        assert run.rows([]).empty
        assert (run.record["status"], run.record["seconds"]) == (COMPLETE, 1.5)


def test_a_column_that_is_empty_in_one_part(run):
    one = {"sample_id": "a", "x": [np.nan], "bins": [[]], "text": [None], "count": [1]}
    run.append(pd.DataFrame(one))
    other = {"sample_id": "b", "x": [2.0], "bins": [[3]], "text": ["b"], "count": [1.5]}
    run.append(pd.DataFrame({**other, "late": [1.0]}))
    rows = run.rows()
    assert rows["bins"].map(list).tolist() == [[], [3]]
    assert rows["text"][1] == "b"
    assert (rows["x"].dtype, rows["count"].tolist()) == (float, [1.0, 1.5])
    assert rows["late"].isna().tolist() == [True, False]


def test_tables_by_name(run):
    table = pd.DataFrame({"layer": [0, 1], "norm_mean": [0.1 + 0.2, np.nan]})
    run.write_table("layers", table.iloc[:1])
    run.write_table("layers", table)  # replaces the first
    run.write_table("assumptions", table.iloc[:0])
    assert run.table_names == ["assumptions", "layers"]
    pd.testing.assert_frame_equal(run.table("layers"), table)
    assert (run.has_table("assumptions"), run.has_table("theory")) == (True, False)
    assert run.rows_of("layers")["layer"].tolist() == [0, 1]
    assert run.rows_of("assumptions") is None
    assert run.rows_of("theory") is None


def test_in_memory_the_failure_names_what_there_is():
    run = RunStore(given := dict(RECORD))
    run.note(model="other")
    assert (given, run.path, run.name) == (RECORD, None, "layers")
    for held in ("none", "layers"):
        with pytest.raises(NormprobeError) as caught:
            run.table("theory")
        assert caught.value.problem == "the run of layers holds no table theory"
        assert caught.value.remedy == f"it holds {held}"
        run.write_table("layers", part("a"))
    with pytest.raises(NormprobeError, match="the run of layers holds no image photo"):
        run.image("photo")


def test_warnings_are_kept_once(run):
    for text in ("slow attention", "slow attention", "bf16"):
        run.add_warning(text)
    assert run.record["warnings"] == ["slow attention", "bf16"]
    if run.path:
        assert RunFolder.open(run.path).record["warnings"] == ["slow attention", "bf16"]


def test_an_image_of_any_mode_is_read_in_color(run):
    run.write_image("image", Image.new("L", (3, 2), 7))
    np.testing.assert_array_equal(run.image("image"), np.full((2, 3, 3), 7, dtype=np.uint8))


def test_images_by_name(run):
    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    run.write_image("image", Image.fromarray(pixels))
    np.testing.assert_array_equal(run.image("image"), pixels)
    ((name, image),) = run.images()
    assert name == "image"
    np.testing.assert_array_equal(np.asarray(image), pixels)


def test_a_failure_passes_and_a_success_keeps_everything(run):
    with run.discarded_on_failure():
        run.append(part("a"))
    with pytest.raises(RuntimeError, match="broken"), run.discarded_on_failure():
        raise RuntimeError("broken")
    assert run.sample_ids() == {"a"}


def test_a_failure_before_the_first_row_leaves_no_folder(tmp_path):
    run = RunFolder.create(tmp_path / "run", overwrite=False, record=RECORD)
    with pytest.raises(RuntimeError, match="broken"), run.discarded_on_failure():
        raise RuntimeError("broken")
    assert not run.path.exists()


def test_a_failure_while_others_add_rows_leaves_the_folder_to_them(tmp_path):
    run = new_run(tmp_path / "run")
    run.kept_on_failure = True
    with pytest.raises(RuntimeError, match="broken"), run.discarded_on_failure():
        raise RuntimeError("broken")
    assert status(run.path) == PARTIAL


# --- parts of sample rows: interruptions, damage, older versions --------------------------------


def no_space(monkeypatch, fails):
    """Let the disk fill up at the first file whose name holds ``fails``."""

    def sync(descriptor):
        if fails in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            os.ftruncate(descriptor, 7)
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", sync)


def test_parts_are_read_where_they_lie(tmp_path):
    run = new_run(tmp_path / "run", model="a/b")
    assert status(run.path) == "partial"
    for samples in ("a", "b"):
        run.append(part(samples))
    run.finish()
    written = ["run.json", "samples/part-00000.parquet", "samples/part-00001.parquet"]
    assert files(run.path) == written
    again = RunFolder.open(run.path)
    assert (again.record["status"], again.record["model"]) == ("complete", "a/b")
    again.append(part("c"))  # a complete run can go on
    assert status(run.path) == "partial"
    again.finish()
    assert list(RunFolder.open(run.path).rows()["sample_id"]) == ["a", "b", "c"]


def test_a_run_without_samples_finishes(tmp_path):
    run = new_run(tmp_path)
    run.finish()
    assert status(tmp_path) == "complete"
    assert run.rows().empty


def test_a_full_disk_keeps_the_complete_parts(tmp_path, monkeypatch):
    run = new_run(tmp_path)
    run.append(part("a"))
    no_space(monkeypatch, "part-00001")
    with pytest.raises(NormprobeError) as caught:
        run.append(part("b"))
    assert f"no space left in {tmp_path}" in caught.value.problem
    assert files(tmp_path) == ["run.json", "samples/part-00000.parquet"]
    assert status(tmp_path) == "partial"
    monkeypatch.undo()
    resumed = RunFolder.open(tmp_path)
    resumed.append(part("b"))
    assert list(resumed.rows()["sample_id"]) == ["a", "b"]


@pytest.mark.parametrize("leftovers", [0, 2])  # parts, where that version was killed in between
def test_the_one_file_of_an_older_version_is_read_and_gone_on_with(leftovers, tmp_path):
    run = new_run(tmp_path)
    for samples in "ab":
        run.append(part(samples))
    pyarrow.parquet.write_table(pyarrow.Table.from_pandas(run.rows()), tmp_path / MERGED_FILE)
    for number in range(leftovers, 2):
        (tmp_path / f"samples/part-{number:05d}.parquet").unlink()
    again = RunFolder.open(tmp_path)
    assert list(again.rows()["sample_id"]) == ["a", "b"]
    assert again.set_unreadable_aside() == []
    again.append(part("c"))
    assert list(again.rows()["sample_id"]) == ["a", "b", "c"]
    assert not (tmp_path / MERGED_FILE).exists()


def rows(*samples):
    table = pd.DataFrame({"sample_id": samples, "layer": 0, "group": "text", "mean": 0.1})
    return pd.concat([table, table.assign(layer=1)])


@pytest.fixture
def parts(tmp_path):
    made = SampleParts(tmp_path)
    for sample in "abc":
        made.append(rows(sample))
    return made


def _truncate(file):
    os.truncate(file, file.stat().st_size // 2)


def _empty(file):
    file.write_bytes(b"")


def _foreign(file):
    pd.DataFrame({"x": [1]}).to_parquet(file)


def _folder(file):
    file.unlink()
    file.mkdir()


def _pipe(file):
    file.unlink()
    os.mkfifo(file)


def _turn_a_bit(file):
    """One that only another number tells of."""
    data = file.read_bytes()
    sound = pd.read_parquet(file)
    for place in range(len(data)):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        try:
            if not pd.read_parquet(file).equals(sound):
                return
        except Exception:
            continue  # that one makes it unreadable
    raise AssertionError("every bit tells")


@pytest.mark.parametrize("damage", [_truncate, _empty, _foreign, _folder, _pipe, _turn_a_bit])
def test_a_damaged_part_is_named_and_its_samples_are_missing(parts, damage, tmp_path):
    assert parts.set_unreadable_aside() == []
    file = tmp_path / "samples/part-00001.parquet"
    damage(file)
    with pytest.raises(NormprobeError) as refused:
        parts.rows()
    assert str(file) in refused.value.problem
    assert "--resume" in refused.value.remedy
    (named,) = parts.set_unreadable_aside()
    assert named.startswith("part-00001.parquet: ")
    assert (tmp_path / "samples/damaged-part-00001.parquet").exists()
    assert parts.sample_ids() == {"a", "c"}
    parts.append(rows("b"))
    assert sorted(parts.rows()["sample_id"].unique()) == ["a", "b", "c"]


def test_rows_that_are_there_twice_are_refused(parts):
    parts.append(rows("c", "d"))
    with pytest.raises(NormprobeError) as refused:
        parts.rows()
    assert "2 rows twice (sample_id c, layer 0, group text)" in refused.value.problem
    assert "--overwrite" in refused.value.remedy


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
    RunFolder.create(tmp_path, overwrite=True, record={"schema_version": SCHEMA_VERSION})
    assert files(tmp_path) == ["notes.csv", "plots/notes.txt", "run.json"]
    assert RunFolder.open(tmp_path).record["files"] == []


def replaced(path, rows=True):
    """A run that was begun in place of an older one, as ``--overwrite`` begins it."""
    old = new_run(path, model="old")
    if rows:
        old.append(part("a"))
    old.write_table("layers", part("a"))
    old.finish()
    return RunFolder.create(path, overwrite=True, record={**RECORD, "model": "new"}, later=True)


@pytest.mark.parametrize("rows", [True, False])  # of embeddings there are none
def test_what_fails_before_it_holds_anything_leaves_the_older_run(tmp_path, rows):
    run = replaced(tmp_path, rows)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    with pytest.raises(KeyError), run.discarded_on_failure():
        run.note(seconds=3)
        run.add_warning("slow")
        raise KeyError
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before
    assert RunFolder.open(tmp_path).record["model"] == "old"
    RunFolder.create(tmp_path, overwrite=True, record=RECORD)  # its lock is free


@pytest.mark.parametrize(
    ("act", "left"),
    [
        (lambda run: run.append(part("b")), ["run.json", "samples/part-00000.parquet"]),
        (lambda run: run.write_table("words", part("b")), ["run.json", "words.csv"]),
        (lambda run: run.finish(), ["run.json"]),
        (lambda run: run.replace_older(), ["run.json"]),
    ],
)
def test_the_first_thing_that_a_run_holds_replaces_the_older_one(tmp_path, act, left):
    run = replaced(tmp_path)
    run.note(device="cpu")
    act(run)
    assert files(tmp_path) == left
    assert RunFolder.open(tmp_path).record == run.record
    assert run.record["device"] == "cpu"


@pytest.mark.parametrize(
    "ask", [lambda run: run.sample_ids(), lambda run: len(run.rows()), lambda run: run.table_names]
)
def test_nothing_of_an_older_run_is_taken_for_the_new_one(tmp_path, ask):
    assert not ask(replaced(tmp_path))


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


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1, None, "5", "\x1b[2J"])
def test_tables_of_another_form_are_refused_but_may_be_replaced(tmp_path, version):
    new_run(tmp_path, schema_version=version).unlock()
    with pytest.raises(NormprobeError) as caught:
        RunFolder.open(tmp_path)
    assert f"{tmp_path} have another form" in caught.value.problem
    assert f"expected schema version {SCHEMA_VERSION}, received" in caught.value.problem
    assert all(line.isprintable() for line in str(caught.value).splitlines())
    assert "measure again" in caught.value.remedy
    run = RunFolder.create(tmp_path, overwrite=True, record=RECORD)
    assert RunFolder.open(tmp_path).record == run.record


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
        for form in (table, tidied(name, table)):
            run.write_table(name, form)
            pd.testing.assert_frame_equal(read_table(tmp_path, name), form, check_dtype=False)


def test_numbers_are_read_to_their_last_bit(tmp_path):
    run = new_run(tmp_path)
    norms = np.random.default_rng(0).lognormal(size=500)
    run.write_table("tokens", pd.DataFrame({"token": "x", "norm": norms}))
    assert np.array_equal(read_table(tmp_path, "tokens")["norm"], norms)


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


# --- where runs go, and are found ---------------------------------------------------------------

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


def test_a_run_folder_is_itself_whatever_lies_in_it(tmp_path):
    outer = run_folder(tmp_path / "survey", "survey")
    run_folder(outer / "models" / "one", "interface")
    assert runs_below(outer) == [outer]


def test_runs_are_found_where_commands_put_them(tmp_path):
    created = {"created": "2026-01-01"}
    late = run_folder(tmp_path / "runs/org--model/a", "layers", record={"created": "2026-02-01"})
    early = run_folder(tmp_path / "runs/specimen/demo/layers", "layers", record=created)
    damaged = tmp_path / "runs/damaged"
    damaged.mkdir()
    (damaged / "run.json").write_text("{")
    # It is named where it is opened: a page without it would look complete.
    assert runs_below(tmp_path / "runs") == [damaged, early, late]


def test_a_folder_without_a_run_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NormprobeError, match="holds no run folder"):
        runs_below(tmp_path / "empty")


def test_what_is_no_folder_is_refused_where_it_is_opened(tmp_path):
    (path,) = runs_below(tmp_path / "none")
    with pytest.raises(NormprobeError, match="is not a run folder"):
        RunFolder.open(path)
