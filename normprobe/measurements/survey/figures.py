"""What is drawn of a survey: every model's disparity, and whether inertia goes with it."""

import textwrap

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given, panels
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    GROUP_LOOKS,
    SERIES_COLORS,
    shortened,
    use_log,
)
from normprobe.report.sentences import CORRELATION, correlation_sentence
from normprobe.runs.run_folder import RunStore
from normprobe.schema import VISUAL


def drawings(run: RunStore) -> list[Drawing]:
    """The figures of a survey: inertia only where a model has it."""
    both = run.table("survey")[["disparity_input", "inertia_gap"]].notna().all(axis=1)
    found = [Drawing("survey", ("survey",), draw_survey)]
    if both.any():
        found.append(Drawing("inertia", ("survey", CORRELATION), draw_inertia))
    return found


_MODEL = 0.2  # inches a model
_MODEL_NAME = 48  # characters of a model's name


def draw_survey(title: str, survey: pd.DataFrame, ax: Given = None) -> Figure:
    """Models from top to bottom by falling ratio; those without a ratio stand below, empty."""
    rows = survey.sort_values("disparity_input", ascending=False, na_position="last")
    lines = np.arange(len(rows))
    drawing, grid = panels(title, DOUBLE_WIDTH, 1.0 + _MODEL * max(len(rows), 3), ax=ax)
    axes = grid[0, 0]
    look = GROUP_LOOKS[VISUAL]
    low, high = (rows[f"disparity_input_ci_{end}"].to_numpy(float) for end in ("low", "high"))
    axes.hlines(lines, low, high, color=look.color, linewidth=1)
    axes.plot(rows["disparity_input"], lines, look.marker, color=look.color, linestyle="none")
    axes.axvline(1, color="0.5", linewidth=0.6, linestyle=":")
    use_log(axes, "x", np.array([*rows["disparity_input"].to_numpy(float), 1.0]))
    axes.set_xlabel("visual / text norm at the decoder input (95 % interval)")
    axes.set_yticks(lines, labels=[shortened(str(name), _MODEL_NAME) for name in rows["model"]])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="y", color="0.9", linewidth=0.5)
    return drawing


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
