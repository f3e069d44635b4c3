"""Whatever ends a run, what was measured stays, and --resume ends with the same table."""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cli.conftest import assert_same_bytes, assert_same_tables, assert_two_lines
from PIL import Image
from safetensors import safe_open
from support.commands import Forked, invoke
from support.kept_folder import keep, restore
from support.unrendered import save_placeholders
from typer.testing import Result

from normprobe.data.data_set import DataSet, bundled_data_dir, open_data
from normprobe.data.sample import Sample
from normprobe.measurements.interface import measure as interface_measure
from normprobe.measurements.layers import measure
from normprobe.runs import model_source
from normprobe.specimen import SPECIMEN_DIR

Run = Callable[..., Result]
Start = Callable[..., Forked]
Measured = Callable[..., Path]

#: In float32: bfloat16 arithmetic depends on the other samples of a batch.
LAYERS = ("layers", "--dtype", "float32")


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("samples/part-*.parquet"))


def kill_after_a_part(process: Forked, folder: Path, seconds: float) -> None:
    deadline = time.monotonic() + 60
    while not parts(folder) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(seconds)
    process.kill()
    process.wait(timeout=30)


@pytest.mark.parametrize("size", ["1", "4"])
def test_a_killed_run_goes_on(
    size: str, run: Run, start: Start, measured: Measured, tmp_path: Path
) -> None:
    layers = (*LAYERS, "-b", size)
    kill_after_a_part(start(*layers, "-o", "out"), tmp_path / "out", 0.0)
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert record["status"] == "partial"
    kept = pd.concat([pd.read_parquet(part) for part in parts(tmp_path / "out")])
    assert 0 < kept["sample_id"].nunique() < len(record["sample_ids"])
    result = run(*layers, "-o", "out", "--resume")
    assert result.exit_code == 0, result.output
    assert_same_bytes(tmp_path / "out", measured(*layers))
    ended = json.loads((tmp_path / "out/run.json").read_text())
    assert ended["status"] == "complete"
    assert list(ended["image_hashes"]) == record["sample_ids"]


@pytest.mark.slow
def test_a_run_killed_at_many_points_goes_on(
    run: Run, start: Start, measured: Measured, tmp_path: Path
) -> None:
    points = random.Random(0)
    for _ in range(8):
        seconds = points.uniform(0.0, 0.6)
        size = points.choice(["1", "3", "auto"])
        process = start(*LAYERS, "-b", size, "-o", "out", "--resume")
        kill_after_a_part(process, tmp_path / "out", seconds)
    assert run(*LAYERS, "-o", "out", "--resume").exit_code == 0
    assert_same_tables(tmp_path / "out", measured(*LAYERS))


def test_samples_that_are_there_are_not_measured_again(
    run: Run, measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        ends_after(patch, 3, KeyboardInterrupt())
        assert run(*LAYERS, "-n", "5", "-o", "out").exit_code == 130
    assert len(parts(tmp_path / "out")) > 0
    forwards: list[None] = []
    real = measure.observe

    def counted(*arguments: Any) -> measure.SeenLayers:
        forwards.append(None)
        return real(*arguments)

    monkeypatch.setattr(measure, "observe", counted)
    assert run(*LAYERS, "-n", "5", "-o", "out", "--resume").exit_code == 0
    assert len(forwards) == 2
    rows = pd.read_parquet(tmp_path / "out/samples")
    assert rows.groupby(["sample_id", "layer", "group"]).size().max() == 1
    assert_same_bytes(tmp_path / "out", measured(*LAYERS, "-n", "5"))


def ends_after(monkeypatch: pytest.MonkeyPatch, samples: int, error: BaseException) -> None:
    """The model's forward fails once some batches are measured."""
    real, calls = measure.observe, iter(range(100))

    def observe(*arguments: Any) -> measure.SeenLayers:
        if next(calls) == samples:
            raise error
        return real(*arguments)

    monkeypatch.setattr(measure, "observe", observe)


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_nothing_on_disk(
    run: Run, measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, samples_of, real = os.getpid(), DataSet.__iter__, measure.observe
    third = open_data("sample", limit=4).ids[2]
    measured_two = tmp_path / "measured-two"
    calls: list[None] = []

    def killed_at_the_third(data: DataSet) -> Iterator[Sample]:
        for sample in samples_of(data):
            if sample.id == third and os.getpid() != here:
                while not measured_two.exists():
                    time.sleep(0.02)
                time.sleep(0.5)  # until the rows of the first are in the run
                os.kill(os.getpid(), signal.SIGKILL)
            yield sample

    def counted(*arguments: Any) -> measure.SeenLayers:
        seen = real(*arguments)
        calls.append(None)
        if len(calls) == 2:
            measured_two.touch()
        return seen

    with monkeypatch.context() as patch:
        patch.setattr(DataSet, "__iter__", killed_at_the_third)
        patch.setattr(measure, "observe", counted)
        ended = run(*LAYERS, "-n", "4", "-o", "out")
    assert_two_lines(ended, "a process that makes inputs was ended", "--resume")
    kept = pd.concat([pd.read_parquet(part) for part in parts(tmp_path / "out")])
    assert kept["sample_id"].nunique() == 2
    assert run(*LAYERS, "-n", "4", "-o", "out", "--resume").exit_code == 0
    assert_same_tables(tmp_path / "out", measured(*LAYERS, "-n", "4"))


def test_a_bad_image_in_a_worker_is_told_in_two_lines(run: Run, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    shutil.copy("/dev/null", tmp_path / "images/b.jpg")
    from PIL import Image

    Image.new("RGB", (64, 64), "red").save(tmp_path / "images/a.jpg")
    lines = [
        {"question_id": n, "image": name, "text": "Is it?", "label": "yes"}
        for n, name in enumerate(["a.jpg", "b.jpg", "a.jpg"])
    ]
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert_two_lines(run(*LAYERS, "--data", "some.jsonl", "-o", "out"), "b.jpg")
    assert len(parts(tmp_path / "out")) == 1


# --- what is refused ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a finished run of it."""
    folder = tmp_path_factory.mktemp("once")
    shutil.copytree(SPECIMEN_DIR, folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        save_placeholders(patch)
        assert invoke("interface", "./model", "-n", "2", "-o", "out").exit_code == 0
    return folder


@pytest.fixture
def finished(once: Path, run: Run, tmp_path: Path) -> Path:
    """A copy of the run, beside a copy of its model."""
    shutil.copytree(once, tmp_path, dirs_exist_ok=True)  # keeps the times of change
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--dtype", "float32"], "with --dtype auto; this command comes with --dtype float32"),
        (["--system", "Short."], "without --system; this command comes with --system Short."),
        (["-n", "3"], "with --limit 2; this command comes with --limit 3"),
        (["--seed", "7"], "with --seed 42; this command comes with --seed 7"),
    ],
)
def test_another_run_is_not_gone_on_with(
    options: list[str], told: str, finished: Path, run: Run
) -> None:
    before = {file: file.read_bytes() for file in finished.rglob("*.*")}
    again = ["interface", "./model", "-o", "out", "--resume"]
    options = options if "-n" in options else ["-n", "2", *options]
    assert_two_lines(run(*again, *options), f"out was measured {told}")
    assert {file: file.read_bytes() for file in finished.rglob("*.*")} == before


def change(file: Path, at: int = -2) -> None:
    """Another byte, the same size and time."""
    before = file.stat()
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_another_command_model_or_data_is_refused(finished: Path, run: Run) -> None:
    options = ["-n", "2", "-o", "out", "--resume"]
    assert_two_lines(run("interface", *options), "--model", "./model", "specimen")
    assert_two_lines(run("layers", "./model", *options), "command", "interface", "layers")
    change(finished.parent / "model/processor_config.json")
    assert_two_lines(run("interface", "./model", *options), "model files", "expected", "received")


def test_data_that_changed_is_refused(run: Run, tmp_path: Path) -> None:
    table = shutil.copy(bundled_data_dir() / "mmbench_dev_en_sample.tsv", tmp_path / "own.tsv")
    command = ["interface", "--data", "own.tsv", "-n", "1", "-o", "out"]
    assert run(*command).exit_code == 0
    assert run(*command, "--resume").exit_code == 0
    os.utime(table, (1, 1))  # a copy of the same is the same
    assert run(*command, "--resume").exit_code == 0
    change(Path(table))
    assert_two_lines(run(*command, "--resume"), "data files", "expected", "received")


def test_a_picture_that_changed_is_refused(run: Run, tmp_path: Path) -> None:
    for number in range(2):
        Image.new("RGB", (40, 30), (number, 0, 0)).save(tmp_path / f"{number}.bmp")
    lines = [{"id": n, "prompt": "What?", "image": f"{n}.bmp"} for n in range(2)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["interface", "--data", "own.jsonl", "-o", "out"]
    assert run(*command).exit_code == 0
    change(tmp_path / "1.bmp")
    assert_two_lines(run(*command, "--resume"), "picture of prompts/1", "out", "--overwrite")


def test_a_finished_run_stays_as_it_is(finished: Path, run: Run) -> None:
    before = (finished / "interface.csv").read_bytes()
    assert run("interface", "./model", "-n", "2", "-o", "out", "--resume").exit_code == 0
    assert (finished / "interface.csv").read_bytes() == before


def test_a_model_that_fails_to_load_costs_no_rows(
    finished: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(model_source, "load_model", fail)
    options = ["-n", "2", "-o", "out", "--resume"]
    assert_two_lines(run("interface", "./model", *options), "out of memory")
    assert not pd.read_parquet(finished / "samples").empty


def test_without_a_folder_the_last_unfinished_run_is_resumed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_two_lines(run("layers", "--resume"), "no unfinished run of layers", "--output")
    with monkeypatch.context() as patch:
        ends_after(patch, 3, KeyboardInterrupt())
        assert run("layers", "-n", "5").exit_code == 130
    (unfinished,) = Path("runs/specimen").iterdir()
    assert run("interface", "-n", "1").exit_code == 0
    done = run("layers", "-n", "5", "--resume")
    assert done.exit_code == 0, done.output
    assert f"resumes {unfinished}" in done.stderr
    assert json.loads((unfinished / "run.json").read_text())["status"] == "complete"
    assert_two_lines(run("layers", "-n", "5", "--resume"), "no unfinished run of layers")


def test_a_damaged_part_is_measured_again(
    run: Run, measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = (*LAYERS, "-n", "5")
    assert run(*layers, "-o", "out").exit_code == 0
    whole = tmp_path / "out/samples/part-00000.parquet"
    os.truncate(whole, whole.stat().st_size // 2)
    done = run(*layers, "-o", "out", "--resume")
    assert done.exit_code == 0, done.output
    assert "part-00000.parquet" in done.stderr
    assert_same_bytes(tmp_path / "out", measured(*layers))


def test_resuming_nothing_begins(run: Run, tmp_path: Path) -> None:
    assert run("interface", "-n", "1", "-o", "out", "--resume").exit_code == 0
    assert (tmp_path / "out/interface.csv").is_file()


def test_a_run_may_lie_below_its_model(run: Run, tmp_path: Path) -> None:
    shutil.copytree(SPECIMEN_DIR, tmp_path / "model")
    command = ["interface", "./model", "-n", "1", "-o", "model/out"]
    assert run(*command).exit_code == 0
    result = run(*command, "--resume")
    assert result.exit_code == 0, result.output


def test_samples_without_a_picture_are_gone_on_with(run: Run, tmp_path: Path) -> None:
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    lines = [{"id": 1, "prompt": "What?", "image": "a.png"}, {"id": 2, "prompt": "Say a word."}]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["layers", "--data", "own.jsonl", "-o", "out"]
    assert run(*command).exit_code == 0
    result = run(*command, "--resume")
    assert result.exit_code == 0, result.output


def test_an_adapter_that_changed_is_refused(run: Run, tmp_path: Path) -> None:
    assert run("align", "-n", "1", "-o", "adapter").exit_code == 0
    command = ["interface", "./adapter", "-n", "1", "-o", "out"]
    assert run(*command).exit_code == 0
    assert run(*command, "--resume").exit_code == 0
    change(tmp_path / "adapter/norm_alignment.safetensors")
    assert_two_lines(run(*command, "--resume"), "alignment_norm.weight was", ", is ")


# --- what changes between a kill and what goes on -----------------------------------------------


GOES_ON = ("interface", "./adapter", "--data", "own.jsonl", "--workers", "0")


@pytest.fixture(scope="module")
def ended_early(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with an alignment norm, three pictures, a finished run and one of two pictures."""
    folder = tmp_path_factory.mktemp("ended") / "early"
    folder.mkdir()
    shutil.copytree(SPECIMEN_DIR, folder / "model")
    for number in range(3):
        Image.effect_noise((48, 40), 50 + number).convert("RGB").save(folder / f"{number}.bmp")
    lines = [{"id": n, "prompt": f"Which {n}?", "image": f"{n}.bmp"} for n in range(3)]
    (folder / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        save_placeholders(patch)
        assert invoke("align", "./model", "-n", "1", "-o", "adapter").exit_code == 0
        assert invoke(*GOES_ON, "-o", "whole").exit_code == 0
        with pytest.MonkeyPatch.context() as ends:
            real, calls = interface_measure.observe, iter(range(100))

            def observe(*arguments: Any) -> Any:
                if next(calls) == 2:
                    raise KeyboardInterrupt
                return real(*arguments)

            ends.setattr(interface_measure, "observe", observe)
            assert invoke(*GOES_ON, "-o", "out").exit_code == 130
    assert len(pd.read_parquet(folder / "out/samples")["sample_id"].unique()) == 2
    return keep(folder)


@pytest.fixture
def interrupted(ended_early: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in that folder, in which all is as it was: runs name its path."""
    monkeypatch.chdir(restore(ended_early))
    return run


def flip(file: Path, tensor: str, chance: random.Random) -> None:
    """The lowest bit of one number of a tensor."""
    content = bytearray(file.read_bytes())
    length = int.from_bytes(content[:8], "little")
    told = json.loads(content[8 : 8 + length])[tensor]
    begin, end = told["data_offsets"]
    size = {"F32": 4, "BF16": 2, "F16": 2}[told["dtype"]]
    content[8 + length + begin + size * chance.randrange((end - begin) // size)] ^= 1
    file.write_bytes(content)


def other_projector(chance: random.Random) -> str:
    name = f"multi_modal_projector.linear_{chance.choice('12')}.weight"
    with safe_open("model/model.safetensors", "pt") as saved:
        (key,) = (key for key in saved.keys() if key.endswith(name))  # noqa: SIM118
    flip(Path("model/model.safetensors"), key, chance)
    return f"{name} was "


def other_gain(chance: random.Random) -> str:
    flip(Path("adapter/norm_alignment.safetensors"), "alignment_norm.weight", chance)
    return "alignment_norm.weight was "


def other_tokenizer(chance: random.Random) -> str:
    file = Path("model/tokenizer.json")
    told = json.loads(file.read_text())
    vocabulary = told["model"]["vocab"]
    a, b = chance.sample(sorted(vocabulary), k=2)
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    file.write_text(json.dumps(told))
    return "another model files"


def other_template(chance: random.Random) -> str:
    file = Path("model/chat_template.jinja")
    text = file.read_text()
    at = chance.randrange(len(text))
    file.write_text(f"{text[:at]} {text[at:]}")
    return "another model files"


def other_picture(chance: random.Random) -> str:
    number = chance.choice([0, 1])
    with Image.open(f"{number}.bmp") as picture:
        place = chance.randrange(48), chance.randrange(40)
        red, *rest = picture.getpixel(place)  # type: ignore[misc]
        picture.putpixel(place, (red ^ 1, *rest))
        picture.save(f"{number}.bmp")
    return f"the picture of prompts/{number} is not the one that out measured"


CHANGES = [other_projector, other_gain, other_tokenizer, other_template, other_picture]


def seeds(count: int) -> list[Any]:
    """One is fast, as many as it takes are slow."""
    return [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, count))]


@pytest.mark.parametrize("seed", seeds(10))
@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_since_is_refused_by_name(
    change: Callable[[random.Random], str], seed: int, interrupted: Run
) -> None:
    told = change(random.Random(seed))
    kept = {file: file.read_bytes() for file in Path("out/samples").iterdir()}
    assert_two_lines(interrupted(*GOES_ON, "-o", "out", "--resume"), told)
    assert {file: file.read_bytes() for file in Path("out/samples").iterdir()} == kept


@pytest.mark.parametrize("seed", seeds(20))
def test_what_did_not_change_goes_on(seed: int, interrupted: Run) -> None:
    os.utime("model/model.safetensors", (seed, seed))
    result = interrupted(*GOES_ON, "-o", "out", "--resume")
    assert result.exit_code == 0, result.output
    assert_same_bytes(Path("out"), Path("whole"), "interface")
