"""``normprobe grounding`` as a user runs it, on two pictures of one size."""

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from cli.conftest import assert_two_lines
from support.flat import flat
from typer.testing import Result

from normprobe import NormprobeError, Probe, load_run
from normprobe.data.data_set import bundled_data_dir
from normprobe.run import page_of

Run = Callable[..., Result]

ROWS = [
    {"id": "cup", "image": "a.jpg", "prompt": "Where is the cup?", "word": "cup"}
    | {"box": [128, 12, 306, 232]},
    {"id": "rocket", "image": "b.jpg", "prompt": "Where is the rocket?", "word": "rocket"}
    | {"box": [215, 88, 236, 286]},
    {"id": "beyond", "image": "b.jpg", "prompt": "Where is the rocket?", "word": "rocket"}
    | {"box": [215, 88, 236, 1286]},
    {"id": "all", "image": "b.jpg", "prompt": "Where is the sky?", "word": "sky"}
    | {"box": [0, 0, 448, 299]},
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name, picture in (("a", "coffee"), ("b", "rocket")):
        content = (bundled_data_dir() / "images" / f"{picture}.jpg").read_bytes()
        (tmp_path / f"{name}.jpg").write_bytes(content)
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_before_and_after_alignment(run: Run, data: Path) -> None:
    assert_two_lines(run("grounding", "--data", data), "line 3, column box", "no region")
    first = run("grounding", "--data", data, "--skip-bad", "-o", "plain")
    assert first.exit_code == 0, first.output
    assert "1 bad row left out" in first.stderr
    assert "1 sample left out" in first.stdout
    table = flat(pd.read_csv(data.parent / "plain/grounding.csv"))
    assert table["layer"].tolist() == list(range(7))
    assert (table["samples"] == 2).all()
    assert table["cosine_gap_ci_low"].notna().all()
    left_out = pd.read_csv(data.parent / "plain/left_out.csv")
    assert left_out.values.tolist() == [["prompts/all", "every visual token lies in the box"]]
    assert "A word and what it means" in page_of([load_run(data.parent / "plain")])

    # What is measured is not measured again, and the table is the same.
    before = (data.parent / "plain/grounding.csv").read_bytes()
    resumed = run("grounding", "--data", data, "--skip-bad", "-o", "plain", "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert (data.parent / "plain/grounding.csv").read_bytes() == before

    aligned = run("grounding", "--data", data, "--skip-bad", "--align", "table", "-o", "aligned")
    assert aligned.exit_code == 0, aligned.output
    assert "visual tokens aligned" in aligned.stdout
    other = flat(pd.read_csv(data.parent / "aligned/grounding.csv"))
    assert (other["cosine_gap"] - table["cosine_gap"]).abs().max() > 1e-3
    compared = run("compare", "plain", "aligned", "-o", "both")
    assert compared.exit_code == 0, compared.output
    assert "score gap" in compared.stdout
    ranking = flat(pd.read_csv(data.parent / "both/ranking.csv"))
    assert set(ranking["run"]) == {"unaligned", "aligned"}
    assert ranking["score_gap_ci_low"].notna().all()


def test_data_without_words_are_refused(run: Run) -> None:
    assert_two_lines(
        run("grounding", "--data", "sample", "-n", "1"), "says no word and box", "--data boxes"
    )


def test_the_bundled_boxes_are_the_default(run: Run) -> None:
    assert "[default: boxes]" in run("grounding", "--help").stdout
    assert "[default: sample]" in run("layers", "--help").stdout


def test_a_batch_of_a_processor_says_no_word() -> None:
    with pytest.raises(NormprobeError, match="grounding measures samples; received a batch"):
        Probe("specimen").measure("grounding", {"input_ids": None})
