"""``--skip-bad``: the rest is measured, what was left out is listed."""

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from cli.conftest import assert_two_lines
from PIL import Image
from typer.testing import Result

Run = Callable[..., Result]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    Image.new("RGB", (8, 6), "red").save(tmp_path / "red.png")
    Image.new("RGB", (8, 6), "blue").save(tmp_path / "blue.png")
    (tmp_path / "bad.png").write_bytes((tmp_path / "red.png").read_bytes()[:50])
    rows = [
        {"id": "a", "image": "red.png", "prompt": "Which colour?"},
        {"id": "b", "image": "bad.png", "prompt": "Which colour?"},
        {"id": "c", "prompt": "Look: <image> and answer."},
        {"id": "d", "image": "blue.png", "prompt": "Which shape?"},
        {"id": "a", "image": "blue.png", "prompt": "Which shape?"},
    ]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    good = [row for row in rows[:4] if row["id"] in "ad"]
    (tmp_path / "good.jsonl").write_text("".join(json.dumps(row) + "\n" for row in good))
    return tmp_path / "mine.jsonl"


@pytest.mark.parametrize("command", ["layers", "interface"])
def test_the_rest_is_measured(run: Run, lines: Path, command: str) -> None:
    batch = ("-b", "3") if command == "layers" else ()
    options = ("--dtype", "float32", *batch)
    result = run(command, "--data", lines, "--skip-bad", "-o", "out", *options)
    assert result.exit_code == 0, result.output
    assert "3 bad rows left out" in result.stderr
    clean = run(command, "--data", lines.with_name("good.jsonl"), "-o", "clean", *options)
    assert clean.exit_code == 0, clean.output
    tables = [pd.read_csv(lines.parent / f"{run}/{command}.csv") for run in ("out", "clean")]
    pd.testing.assert_frame_equal(*tables, rtol=1e-5, atol=1e-6)

    skipped = pd.read_csv(lines.parent / "out/skipped.csv", dtype=str, keep_default_na=False)
    assert list(skipped.columns) == ["file", "row", "column", "sample", "reason"]
    found = skipped.sort_values("row").to_dict("records")
    assert [(row["row"], row["column"], row["sample"]) for row in found] == [
        ("", "", "prompts/c"),  # refused by the processor, which knows of no file
        ("2", "image", "prompts/b"),
        ("5", "id", ""),
    ]
    assert "'<image>'" in found[0]["reason"]
    assert "cannot be decoded" in found[1]["reason"]
    record = json.loads((lines.parent / "out/run.json").read_text())
    assert record["skipped"] == 3
    assert set(record["image_hashes"]) == {"prompts/a", "prompts/d"}
    assert record["status"] == "complete"


@pytest.mark.parametrize("batch_size", ["1", "2", "auto"])
def test_what_was_left_out_stands_in_the_order_of_the_data(
    run: Run, lines: Path, batch_size: str
) -> None:
    """Workers give a batch back at a time, and the processor refuses after the images are read."""
    look, bad = {"prompt": "<image>?"}, {"image": "bad.png", "prompt": "What?"}
    rows = [look, bad, bad, look] * 5 + [{"image": "red.png", "prompt": "What?"}]
    text = "".join(json.dumps({"id": number} | row) + "\n" for number, row in enumerate(rows))
    lines.write_text(text)
    options = ["--data", lines, "--skip-bad", "-b", batch_size, "-o", "out"]
    assert run("layers", *options).exit_code == 0
    skipped = pd.read_csv(lines.parent / "out/skipped.csv")
    assert skipped["sample"].tolist() == [f"prompts/{number}" for number in range(20)]


def test_without_the_option_the_first_is_an_error(run: Run, lines: Path) -> None:
    assert_two_lines(run("layers", "--data", lines), "mine.jsonl, line 5, column id")
    rows = lines.read_text().splitlines()[:4]
    lines.write_text("\n".join(rows))
    assert_two_lines(run("layers", "--data", lines), "mine.jsonl, line 2, column image (bad.png)")


def test_nothing_left_to_measure(run: Run, lines: Path) -> None:
    lines.write_text(lines.read_text().splitlines()[1])
    result = run("layers", "--data", lines, "--skip-bad", "-o", "out")
    assert_two_lines_after_warning(result)
    assert len(pd.read_csv(lines.parent / "out/skipped.csv")) == 1


def assert_two_lines_after_warning(result: Result) -> None:
    _, warning, problem, remedy = result.stderr.strip().splitlines()
    assert warning.startswith("warning: 1 bad row left out")
    assert problem.startswith("error: mine holds no samples that can be used; 1 left out: ")
    assert "--data" in remedy
    assert result.exit_code == 1
