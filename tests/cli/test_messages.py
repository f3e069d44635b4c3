"""What a user is told who passes what cannot be read: the file, and the way that works."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import assert_two_lines
from PIL import Image
from typer.testing import Result

Run = Callable[..., Result]

IN_A_FILE = '{"image": "cat.jpg", "prompt": "What is it?"}'


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("a", "b"):
        Image.new("RGB", (64, 64), "red").save(folder / f"{name}.png")
    return folder


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("mine.xml", "<image>a.png</image>", "mine.xml: expected .csv"),
        ("mine.json", json.dumps([{"image": "a.png", "words": "What?"}]), "mine.json: one JSON"),
    ],
)
def test_tables_of_ones_own_are_pointed_to_json_lines(
    name: str, content: str, problem: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    assert_two_lines(run("layers", "--data", name), problem, "FILE.jsonl", IN_A_FILE)


def test_one_picture_is_pointed_to_its_folder_and_to_json_lines(run: Run, pictures: Path) -> None:
    told = ("one picture", "pass its folder", "--prompt", "FILE.jsonl", IN_A_FILE)
    assert_two_lines(run("interface", "--data", pictures / "a.png"), *told)


@pytest.mark.usefixtures("pictures")
def test_the_pictures_of_a_folder_have_the_prompt_that_is_given(run: Run, tmp_path: Path) -> None:
    result = run("interface", "--data", "pictures", "--prompt", "Is it red or blue?", "-o", "out")
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert record["options"]["prompt"] == "Is it red or blue?"
    assert record["data_provenance"]["sources"][0]["prompt"] == "Is it red or blue?"
    neutral = run("interface", "--data", "pictures", "--format", "csv", "-o", "neutral")
    assert run("show", "out", "--format", "csv").stdout != neutral.stdout
    texts = [(tmp_path / f"{out}/interface.csv").read_text() for out in ("out", "neutral")]
    assert texts[0] != texts[1]


@pytest.mark.usefixtures("pictures")
def test_a_prompt_is_for_a_folder_of_pictures_and_marks_one(run: Run) -> None:
    told = "sample has prompts of its own; expected a folder of images"
    assert_two_lines(run("layers", "--data", "sample", "--prompt", "What?"), "--prompt", told)
    marked = run("layers", "--data", "pictures", "--prompt", "<image> or <image>?")
    assert_two_lines(marked, "--prompt", "mark the image once")


def test_a_device_of_no_such_name_lists_what_can_be_passed(run: Run) -> None:
    result = run("embeddings", "--device", "toaster")
    assert_two_lines(result, "no device 'toaster'", "auto, cpu, cuda, cuda:1, mps, balanced or tp")
    assert "opengl" not in result.stderr


@pytest.mark.parametrize("content", ['{"model_type": ', "[1]", "", "[" * 100_000])
@pytest.mark.parametrize("command", ["inspect", "embeddings"])
def test_a_broken_config_is_named_as_that(
    command: str, content: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(content)
    assert_two_lines(run(command, "./model"), "model/config.json is broken", "again")


def test_resuming_with_other_options_names_them_as_they_are_typed(run: Run) -> None:
    assert run("interface", "-n", "1", "-o", "out").exit_code == 0
    result = run("interface", "--resume", "-o", "out", "--skip-bad")
    assert_two_lines(result, "out was measured with --limit 1; this command comes without --limit")


def test_what_another_library_says_is_cut_at_a_word(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoProcessor

    def from_pretrained(*_: object, **__: object) -> None:
        raise ValueError("unfortunately " * 50)

    monkeypatch.setattr(AutoProcessor, "from_pretrained", from_pretrained)
    result = run("interface", "-n", "1")
    assert_two_lines(result, "cannot be loaded: unfortunately", "unfortunately ...")
