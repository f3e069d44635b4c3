"""What is drawn of a survey: every model's disparity, and whether inertia goes with it."""

import textwrap

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from normprobe.measurements.survey.words import ranked
from normprobe.report.dots import Dots, draw_dots
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given, panels
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    SERIES_COLORS,
    shortened,
    use_log,
)
from normprobe.report.ranking import DISPARITY, ranking_dots
from normprobe.report.sentences import CORRELATION, correlation_sentence
from normprobe.runs.run_folder import RunStore


def drawings(run: RunStore) -> list[Drawing]:
    """The figures of a survey: inertia only where a model has it."""
    both = run.table("survey")[["disparity_input", "inertia_gap"]].notna().all(axis=1)
    found = (
        [Drawing("survey", ("survey",), draw_survey)] if survey_dots(run.table("survey")) else []
    )
    if both.any():
        found.append(Drawing("inertia", ("survey", CORRELATION), draw_inertia))
    return found


def survey_dots(survey: pd.DataFrame) -> Dots | None:
    """Models by falling disparity."""
    words = "visual / text norm at the decoder input"
    return ranking_dots(ranked(survey), DISPARITY, words)


def draw_survey(title: str, survey: pd.DataFrame, ax: Given = None) -> Figure:
    """Models from top to bottom by falling disparity, with their ranks."""
    dots = survey_dots(survey)
    assert dots is not None  # or it is no figure of the run
    return draw_dots(title, dots, ax)


_NUMBERED_NAME = 32  # characters of a model's name
_TITLE = 80  # characters of a line of the title
_LINE = 0.12  # inches of a name in the list
_SMALL = 6.5  # points


def draw_inertia(
    title: str, survey: pd.DataFrame, correlation: pd.DataFrame, ax: Given = None
) -> Figure:
    """Inertia over disparity, with 95 % intervals over images."""
    rows = survey.dropna(subset=["disparity_input", "inertia_gap"])
    rows = rows.sort_values("disparity_input", ascending=False)
    drawing, grid = panels(title, DOUBLE_WIDTH, max(3.6, 1.0 + _LINE * len(rows)), ax=ax)
    axes = grid[0, 0]
    color = SERIES_COLORS[3]
    x, y = (rows[name].to_numpy(float) for name in ("disparity_input", "inertia_gap"))
    left, right = _ends(rows, "disparity_input")
    bottom, top = _ends(rows, "inertia_gap")
    axes.hlines(y, left, right, color=color, linewidth=0.8)
    axes.vlines(x, bottom, top, color=color, linewidth=0.8)
    axes.plot(x, y, "o", color=color)
    for number, place in enumerate(zip(x, y, strict=True), start=1):
        axes.annotate(
            f"{number}", place, xytext=(3, 2), textcoords="offset points", fontsize=_SMALL
        )
    names = [shortened(_last(str(name)), _NUMBERED_NAME) for name in rows["model"]]
    listed = "\n".join(f"{number} {name}" for number, name in enumerate(names, start=1))
    axes.text(1.02, 1, listed, transform=axes.transAxes, va="top", fontsize=_SMALL)
    axes.axhline(0, color="0.5", linewidth=0.6, linestyle=":")
    axes.axvline(1, color="0.5", linewidth=0.6, linestyle=":")
    use_log(axes, "x", np.array([*x, 1.0]))
    axes.set_xlabel("disparity: visual / text norm at the decoder input")
    axes.set_ylabel("inertia: text - visual angle (rad a layer)")
    said = textwrap.fill(correlation_sentence(correlation), _TITLE)
    axes.set_title(said, loc="left", fontsize=_SMALL)
    return drawing


def _last(name: str) -> str:
    """The name without its organisation."""
    return name.rstrip("/").rpartition("/")[2]


def _ends(rows: pd.DataFrame, name: str) -> list["pd.Series[float]"]:
    """The ends of an interval; the number itself where it has none."""
    return [rows[f"{name}{end}"].fillna(rows[name]) for end in ("_ci_low", "_ci_high")]
