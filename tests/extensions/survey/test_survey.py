"""What a survey draws, by a table made by hand."""

import numpy as np
import pytest
from support.golden import CASES, Case, survey


def test_inertia_is_drawn_over_disparity_where_models_have_both() -> None:
    figures = CASES["survey"].run.figures()
    assert list(figures) == ["survey", "inertia"]
    (axes,) = figures["inertia"].axes
    assert axes.get_xscale() == "log"
    *numbers, names = axes.texts
    assert [text.get_text() for text in numbers] == list("123456")
    assert numbers[2].xy == pytest.approx((8.0, 0.4))  # the third by falling disparity
    assert names.get_text().splitlines()[2] == "3 model-3-instruct-hf"


def test_without_inertia_it_is_not_drawn() -> None:
    assert list(Case("survey", survey(*[np.nan] * 6)).run.figures()) == ["survey"]


def test_a_model_that_failed_is_a_line_below_the_table_and_not_a_row_of_text() -> None:
    tables = survey(*[np.nan] * 3)
    tables["models"].loc[3, "reason"] = reason = f"it lacks {' and '.join(['a weight'] * 80)}"
    run = Case("survey", tables).run
    read = run.readable()
    assert all(len(cell) < 40 for row in read.rows for cell in row)
    (line,) = (note for note in read.notes if note.startswith("gated failed: it lacks"))
    assert len(line) < len(reason) and line.endswith("(models.csv has all of it)")
    said = str(run.verdict)
    assert " models failed (gated)." in said
    assert said.count("gated") == 1
