"""``normprobe layers --tower``: what is loaded, written, printed and refused."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open
from typer.testing import CliRunner

from normprobe import Probe, load_run
from normprobe.cli.app import app
from normprobe.run import page_of
from normprobe.specimen import SPECIMEN_DIR
from normprobe.tidy import select

DEPTH = 6


def run(*arguments: object):
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "100"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tower") / "run"
    done = run("layers", "specimen", "--tower", "vision", "-n", 4, "-b", 2, "-o", folder)
    assert done.exit_code == 0, done.output
    (folder / "printed.txt").write_text(done.stdout, encoding="utf-8")
    return folder


def test_the_weights_of_the_tower_alone_are_read(folder: Path) -> None:
    with safe_open(SPECIMEN_DIR / "model.safetensors", "pt") as file:
        names = [name for name in file.keys() if "vision_tower" in name]  # noqa: SIM118
        held = sum(file.get_tensor(name).nbytes for name in names)
        everything = sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert record["weights"]["bytes"] <= held < 0.7 * everything


def test_a_run_holds_its_tables_and_says_what_was_measured(folder: Path) -> None:
    found = load_run(folder)
    assert found.record["command"] == "tower"
    assert found.record["options"]["tower"] == ["vision"]
    assert found.record["tower"]["blocks"] == "model.vision_tower.encoder.layers"
    assert found.record["tower"]["read"] == [5]
    assert sorted(set(found.table["layer"])) == [*range(DEPTH + 1)]
    assert len(found.tables["headroom"]) == DEPTH + 1
    assert not (folder / "layers.csv").exists()
    printed = " ".join((folder / "printed.txt").read_text(encoding="utf-8").split())
    assert "Blocks of the vision tower" in printed
    assert "The projector reads block 5 of 6: what follows it is not used." in printed
    assert " ".join(found.verdict.headline.split()) in printed
    assert "read by the projector: block 5." in page_of([found]).lower()


def test_a_batch_says_what_its_samples_say_alone(folder: Path) -> None:
    alone = Probe("specimen").layers("sample", limit=4, tower="vision")
    for quantity in ("norm", "angle", "high_norm_a_picture", "peak"):
        one, two = (select(each.table, quantity) for each in (load_run(folder), alone))
        assert one["mean"].to_list() == pytest.approx(two["mean"].to_list(), rel=0.02)


def test_an_interrupted_run_goes_on(folder: Path, tmp_path: Path) -> None:
    first = run("layers", "specimen", "--tower", "vision", "-n", 4, "-o", tmp_path / "run", "-q")
    assert first.exit_code == 0
    record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    (tmp_path / "run" / "run.json").write_text(
        json.dumps({**record, "status": "partial"}), encoding="utf-8"
    )
    again = run(
        *("layers", "specimen", "--tower", "vision", "-n", 4, "-o", tmp_path / "run", "-q"),
        "--resume",
    )
    assert again.exit_code == 0, again.output


def test_samples_without_a_picture_are_passed_over(tmp_path: Path) -> None:
    lines = [
        {"id": "with", "image": "picture.png", "prompt": "What is it?"},
        {"id": "without", "prompt": "What is two and two?"},
    ]
    from PIL import Image

    Image.new("RGB", (64, 64), "red").save(tmp_path / "picture.png")
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    done = run(
        *("layers", "specimen", "--tower", "vision", "--data", tmp_path / "data.jsonl"),
        *("-o", tmp_path / "run", "-q"),
    )
    assert done.exit_code == 0, done.output
    assert set(load_run(tmp_path / "run").table["samples"]) == {1}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--also", "branches"), "cannot go with --also"),
        (("--map", "2"), "cannot go with --map"),
        (("--align", "table"), "cannot go with --align"),
    ],
)
def test_what_a_tower_does_not_do_is_said(options: tuple[str, ...], said: str) -> None:
    done = run("layers", "specimen", "--tower", "vision", *options)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_data_without_pictures_and_other_measurements_are_refused(tmp_path: Path) -> None:
    done = run("layers", "specimen", "--tower", "vision", "--data", "text", "-o", tmp_path / "no")
    assert done.exit_code == 1
    assert "is about pictures" in done.output
    done = run("layers", "specimen", "--tower", "audio", "-o", tmp_path / "no")
    assert done.exit_code == 1
    assert "has no audio tower that was found" in " ".join(done.output.split())
    done = run("interface", "specimen", "--tower", "vision")
    assert done.exit_code == 2


def test_towers_are_no_command_of_their_own() -> None:
    assert run("tower", "specimen").exit_code == 2
