"""The section of a run of ``grounding``: gaps with their bands, and both sides of them."""

from pathlib import Path

import pytest
from support import made_tables
from support.made_bands import with_bands
from support.made_runs import run_folder
from support.read_page import charts, page_of_folders


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
