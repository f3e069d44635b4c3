"""Norms from the vision encoder to the input of decoder layer 1, against the text embeddings."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from normprobe.report.figures.lines import Given, panels
from normprobe.report.figures.style import DOUBLE_WIDTH, GROUP_LOOKS, use_log
from normprobe.report.readable import count, significant
from normprobe.schema import (
    DECODER_INPUT,
    NONZERO_ROWS,
    ROW_SCOPES,
    STAGES,
    TEXT,
    TOKEN_GROUPS,
    VISUAL,
    VISUAL_EMBEDDING_TABLE,
)

TABLES = ("interface",)

_LINE = 0.155  # inches that a dot or a stage's name takes
_FRAME = 0.9  # inches for title, axis and its label of two lines


def figure(title: str, interface: pd.DataFrame, ax: Given = None) -> Figure:
    """Dots at the mean norm on a log axis, whiskers from the 5 % to the 95 % quantile.

    A standard deviation is no whisker here: on a log axis mean - std may have no place.
    """
    rows = interface[interface["norm_mean"] > 0]
    lines = _lines(rows)
    drawing, grid = panels(title, DOUBLE_WIDTH, _FRAME + _LINE * (len(lines) + 1), ax=ax)
    axes = grid[0, 0]
    use_log(axes, "x", _drawn_values(rows))
    names = {}
    for y, line in enumerate(lines):
        if isinstance(line, str):
            place = axes.get_yaxis_transform()
            stage = axes.text(0.008, y, line, transform=place, va="center", weight="bold")
            stage.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
        else:
            names[y] = _words(line["group"])
            _draw_dot(axes, y, line)
    axes.set_yticks(list(names), labels=list(names.values()))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(lines) - 0.4, -0.7)
    label = "L2 norm (dot: mean; whiskers: 5-95 % of tokens or rows"
    if "norm_mean_ci_low" in rows and rows["norm_mean_ci_low"].notna().any():
        label += "; thick: 95 % interval of the mean"
    label += ")"
    prompt = rows[(rows["stage"] == DECODER_INPUT) & (rows["group"] == TEXT)]["norm_mean"]
    if len(prompt):
        axes.axvline(
            prompt.iloc[0], color=GROUP_LOOKS[TEXT].color, linestyle=":", linewidth=0.8, zorder=0
        )
        label += "\ndotted line and (n x): against the text of the prompts"
    axes.set_xlabel(label)
    if len(rows):
        axes.set_xlim(*_range(rows))
    return drawing


def _lines(rows: pd.DataFrame) -> list["str | pd.Series[Any]"]:
    """From top to bottom: a stage's name with its hidden size, then a row for each group."""
    lines: list[str | pd.Series[Any]] = []
    for stage in STAGES:
        here = rows[rows["stage"] == stage]
        if here.empty:
            continue
        lines.append(f"{_words(stage)} (d = {count(float(here['hidden_size'].iloc[0]))})")
        for group in (*TOKEN_GROUPS, *ROW_SCOPES):
            lines += [row for _, row in here[here["group"] == group].iterrows()]
    return lines


def _draw_dot(axes: Axes, y: int, row: "pd.Series[Any]") -> None:
    """One dot with its whiskers; the mean, and a visual row's ratio to the prompts, beside it."""
    group, mean = str(row["group"]), float(row["norm_mean"])
    # Rows of a table look as its tokens do; those that the paper averages are filled.
    of_table = VISUAL if row["stage"] == VISUAL_EMBEDDING_TABLE else TEXT
    color, marker, _ = GROUP_LOOKS[group if group in TOKEN_GROUPS else of_table]
    hollow = group in ROW_SCOPES and group != NONZERO_ROWS
    low, high = float(row["norm_q05"]), float(row["norm_q95"])
    if low <= high:  # both known
        axes.plot([low, high], [y, y], color=color, linewidth=0.9, marker="|", markersize=4)
    ends = [float(row.get(f"norm_mean_{end}", np.nan)) for end in ("ci_low", "ci_high")]
    if ends[0] < ends[1]:
        axes.plot(ends, [y, y], color=color, alpha=0.5, linewidth=5, solid_capstyle="butt")
    face = "white" if hollow else color
    axes.plot(mean, y, marker, color=color, markerfacecolor=face, markersize=5, label=group)
    ratio = float(row["ratio_to_prompt"])
    text = significant(mean)
    if group == VISUAL and ratio > 0:
        text += f"  ({significant(ratio, 3)} x)"
    axes.annotate(
        text,
        (max(mean, high) if low <= high else mean, y),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
    )


def _drawn_values(rows: pd.DataFrame) -> NDArray[np.float64]:
    values = rows[["norm_mean", "norm_q05", "norm_q95"]].to_numpy(float)
    positive: NDArray[np.float64] = values[values > 0]
    return positive[np.isfinite(positive)]


def _range(rows: pd.DataFrame) -> tuple[float, float]:
    """From a little below the smallest value to where the longest label has room."""
    values = _drawn_values(rows)
    low, high = float(values.min()) / 2, float(values.max())
    return low, high * max(high / low, 10) ** 0.2


def _words(name: object) -> str:
    return str(name).replace("_", " ")
