"""What a survey shows, by a table made by hand."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.made_runs import run_folder
from support.read_page import Reader, page_of_folders

from normprobe import load_run
from normprobe.report.sentences import correlation_table
from normprobe.report.terminal import terminal_console

NUMBERS = ("disparity_input", "ratio_to_table", "table_norm", "disparity_last", "inertia_gap")


def survey_of(gaps: list[float]) -> pd.DataFrame:
    """A model a gap: the n-th has a disparity of 2 ** n; the last failed."""
    models = len(gaps)
    table = pd.DataFrame({"model": [f"org/model-{n}-instruct-hf" for n in range(models)]})
    for name in NUMBERS:
        values = np.array(gaps) if name == "inertia_gap" else 2.0 ** np.arange(models)
        table[name] = values
        table[f"{name}_ci_low"], table[f"{name}_ci_high"] = values * 0.9, values * 1.1
    table["status"], table["reason"] = "complete", None
    failed = {name: np.nan for name in table} | {"model": "org/gated", "status": "failed"}
    return pd.concat(
        [table, pd.DataFrame([failed | {"reason": "org/gated is gated"}])], ignore_index=True
    )


def folder(path: Path, gaps: list[float]) -> Path:
    survey = survey_of(gaps)
    correlation = correlation_table(survey["disparity_input"], survey["inertia_gap"])
    cost = survey[["model"]].assign(fetched_bytes=1, peak_memory=545_500_000, seconds=3.0)
    tables = {"survey": survey, "cost": cost, "correlation": correlation}
    return run_folder(path, "survey", record={"model": "survey"}, **tables)


def shown(path: Path) -> str:
    text = io.StringIO()
    load_run(path).show(terminal_console(text, width=80))
    assert all(len(line) <= 80 for line in text.getvalue().splitlines())
    return text.getvalue()


def test_inertia_is_compared_with_disparity_where_models_have_both(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    text = " ".join(shown(run).split())
    assert "org/gated: org/gated is gated" in text
    assert "Visual tokens at the decoder input: louder in 5, about as loud in 1 of 6" in text
    assert "Of 7 models, 1 lacks numbers" in text
    assert "Inertia goes with disparity: rank correlation 1.00 [0.36, 1.00] over 6 models" in text
    figures = load_run(run).figures()
    assert list(figures) == ["survey", "inertia"]
    (axes,) = figures["inertia"].axes
    assert axes.get_xscale() == "log"
    *numbers, names = axes.texts
    assert [text.get_text() for text in numbers] == list("123456")
    assert numbers[2].xy == pytest.approx((8.0, 0.4))  # the third by falling disparity
    assert names.get_text().splitlines()[2] == "3 model-3-instruct-hf"


def test_without_inertia_nothing_is_said_of_it(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", [np.nan] * 6)
    assert "nertia" not in shown(run)
    assert list(load_run(run).figures()) == ["survey"]


def test_the_page_shows_every_model_and_its_reason(tmp_path: Path) -> None:
    read = Reader(page_of_folders(folder(tmp_path / "run", [0.1] * 3)))
    assert "org/gated is gated" in read.text
    assert "model-2-instruct-hf" in read.text
    assert "What each model took" in read.text
    assert "peak memory (MB)" in read.text
    assert "545.5" in read.text
    assert "_ci_low" not in read.text.replace("survey.csv holds", "")
