"""What a terminal and the page show of ``grounding``."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support import made_tables
from support.made_bands import with_bands
from support.made_runs import run_folder
from support.read_page import charts, page_of_folders

from normprobe.measurements.grounding.shown import show
from normprobe.report.terminal import terminal_console
from normprobe.runs.run_folder import RunStore


def shown(table: pd.DataFrame, **tables: pd.DataFrame) -> list[str]:
    run = RunStore({})
    for name, more in {"grounding": table, **tables}.items():
        run.write_table(name, more)
    file = io.StringIO()
    show(run, terminal_console(file, 80))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_gaps_and_intervals_stand_in_eighty_columns() -> None:
    lines = shown(made_tables.grounding())
    assert max(map(len, lines)) <= 80
    assert "\u2026" not in "".join(lines)
    row = next(line.split() for line in lines if line.split()[:1] == ["2"])
    assert row == ["2", "0.320", "0.0200", "[0.010,", "0.030]", "0.700", "0.400", "[0.20,", "0.60]"]
    assert any("14 samples" in line for line in lines)


@pytest.mark.parametrize("layers", [33, 80])
def test_a_deep_model_fits_a_screen(layers: int) -> None:
    lines = shown(made_tables.grounding(layers))
    assert len(lines) < 60
    assert any("grounding.csv has all" in line for line in lines)


def test_what_is_missing_is_said() -> None:
    left_out = pd.DataFrame({"sample_id": ["a", "b"], "reason": ["x", "y"]})
    lines = shown(made_tables.grounding().assign(score_gap=np.nan), left_out=left_out)
    assert "2 samples left out: left_out.csv says why." in lines
    assert any(line.startswith("No scores") for line in lines)


def test_it_has_gaps_with_bands_and_what_they_are_the_difference_of(tmp_path: Path) -> None:
    table = with_bands(made_tables.grounding(layers=2), ["score_gap"], 0.5, 0.75)
    text = page_of_folders(run_folder(tmp_path / "run", "grounding", grounding=table))
    drawn, *_ = charts(text)
    assert [chart["label"] for chart in drawn] == [
        "cosine with the word, inside - outside",
        "cosine of a word and visual tokens",
        "attention score of the word, inside - outside",
        "score of a word and visual tokens",
    ]
    (gap,) = drawn[2]["series"]
    assert gap["y"] == [None, 0, 0.4]
    assert gap["low"][1:] == pytest.approx([0, 0.2])
    assert gap["band_high"][1:] == pytest.approx([0, 0.7])
    assert [line["name"] for line in drawn[1]["series"]] == ["inside", "outside"]
    assert "closer to the word" in text
