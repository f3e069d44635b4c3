"""Does inertia go with disparity? A dot a model, each named (RQ3)."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from normprobe.report.correlation_words import correlation_sentence
from normprobe.report.figures.glyphs import shortened
from normprobe.report.figures.style import DOUBLE_WIDTH, SERIES_COLORS, new_figure, use_log

TABLES = ("survey", "correlation")

_LONGEST = 26  # characters of a model's name


def figure(title: str, survey: pd.DataFrame, correlation: pd.DataFrame) -> Figure:
    """Inertia over disparity, with 95 % intervals over images.

    Args:
        title: the figure's title.
        survey: ``survey.csv``.
        correlation: ``correlation.csv``.
    """
    rows = survey.dropna(subset=["disparity_input", "inertia_gap"])
    drawing = new_figure(DOUBLE_WIDTH, 4.2, title)
    axes = drawing.subplots()
    color = SERIES_COLORS[3]
    x, y = (rows[name].to_numpy(float) for name in ("disparity_input", "inertia_gap"))
    left, right = _ends(rows, "disparity_input")
    bottom, top = _ends(rows, "inertia_gap")
    axes.hlines(y, left, right, color=color, linewidth=0.8)
    axes.vlines(x, bottom, top, color=color, linewidth=0.8)
    axes.plot(x, y, "o", color=color)
    for name, at_x, at_y in zip(rows["model"], x, y, strict=True):
        axes.annotate(
            shortened(str(name).rstrip("/").rpartition("/")[2], _LONGEST),
            (at_x, at_y),
            xytext=(4, 3),
            textcoords="offset points",
            fontsize=6,
        )
    axes.axhline(0, color="0.5", linewidth=0.6, linestyle=":")
    axes.axvline(1, color="0.5", linewidth=0.6, linestyle=":")
    use_log(axes, "x", np.array([*x, 1.0]))
    axes.margins(x=0.15, y=0.1)
    axes.set_xlabel("disparity: visual / text norm at the decoder input")
    axes.set_ylabel("inertia: text - visual angle (rad a layer)")
    axes.set_title(correlation_sentence(correlation), loc="left", fontsize=7, wrap=True)
    return drawing


def _ends(rows: pd.DataFrame, name: str) -> list["pd.Series[float]"]:
    """The ends of an interval; the number itself where it has none."""
    return [rows[f"{name}{end}"].fillna(rows[name]) for end in ("_ci_low", "_ci_high")]
