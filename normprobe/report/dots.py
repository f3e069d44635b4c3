"""Means as dots, said once: on paper by matplotlib, on a page as data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from normprobe.report.figures.lines import Given, legend_below, panels
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    GroupLook,
    asks_for_log,
    drawable,
    use_log,
)
from normprobe.report.ratio_words import times
from normprobe.report.readable import significant

_LINE = 0.155  # inches that a dot or a stage's name takes
_FRAME = 0.9  # inches for title, axis and its label of two lines
_RUN = 0.3  # inches a compared run
_FRAME_OF_RUNS = 1.1  # inches for title, axis and legend


@dataclass(frozen=True)
class Dot:
    """A mean."""

    stage: str  # what it stands below, with its neighbours of the same stage
    name: str  # of its line
    look: GroupLook  # colour and marker
    value: float  # the mean
    interval: tuple[float, float]  # the ends of its 95 % interval; NaN: it has none
    # between which numbers 5-95 % of the tokens or rows lie; NaN: unknown
    spread: tuple[float, float] = (float("nan"), float("nan"))
    hollow: bool = False  # it is drawn so
    ratio: float = float("nan")  # to the reference; NaN: not said
    after: float = float("nan")  # a number that it goes to, drawn hollow; NaN: none
    told: str = ""  # what stands beside it; empty: the mean, and the ratio
    mark: str = ""  # what stands before its name


@dataclass(frozen=True)
class Dots:
    """Means on one logarithmic axis, and a line that they are read against."""

    label: str  # what is drawn, for the page
    axis: str  # what the numbers are
    rows: Sequence[Dot]  # from top to bottom
    # name, number and colour of the line; None: there is none
    reference: tuple[str, float, str] | None = None


def on_page(dots: Dots) -> dict[str, Any]:
    """What the page's script draws."""
    rows = []
    for dot in dots.rows:
        numbers = dot.value, *dot.interval, *dot.spread
        names = "value", "low", "high", "least", "most"
        rows.append(
            {
                "stage": dot.stage,
                "name": dot.name,
                "color": dot.look.color,
                "hollow": dot.hollow,
                "ratio": times(dot.ratio) if dot.ratio > 0 else "",
                **dict(zip(names, map(_short, numbers), strict=True)),
                **({"told": dot.told, "mark": dot.mark} if dot.told else {}),
                **({"after": _short(dot.after)} if dot.after > 0 else {}),
            }
        )
    line = dots.reference and dict(zip(("name", "value", "color"), dots.reference, strict=True))
    return {"label": dots.label, "axis": dots.axis, "rows": rows, "reference": line}


def _short(value: float) -> float | None:
    """Six digits: what a screen can show."""
    return None if value != value else float(f"{value:.6g}")


def draw_dots(title: str, dots: Dots, ax: Given = None) -> Figure:
    """Dots at the means, whiskers from the 5 % to the 95 % quantile, thick bars for intervals.

    A standard deviation is no whisker here: on a log axis mean - std may have no place.
    """
    lines: list[str | Dot] = []
    for dot in dots.rows:
        if all(dot.stage != other.stage for other in lines if isinstance(other, Dot)):
            lines.append(dot.stage)
        lines.append(dot)
    drawing, grid = panels(title, DOUBLE_WIDTH, _FRAME + _LINE * (len(lines) + 1), ax=ax)
    axes = grid[0, 0]
    values = _finite([[dot.value, dot.after, *dot.interval, *dot.spread] for dot in dots.rows])
    use_log(axes, "x", values)
    names = {}
    for y, line in enumerate(lines):
        if isinstance(line, str):
            place = axes.get_yaxis_transform()
            stage = axes.text(0.008, y, line, transform=place, va="center", weight="bold")
            stage.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
        else:
            names[y] = drawable(f"{line.mark}  {line.name}" if line.mark else line.name)
            _draw_dot(axes, y, line)
    axes.set_yticks(list(names), labels=list(names.values()))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(lines) - 0.4, -0.7)
    spread = any(dot.spread[0] == dot.spread[0] for dot in dots.rows)
    known = ["dot: mean; whiskers: 5-95 % of tokens or rows"] if spread else []
    if any(dot.interval[0] == dot.interval[0] for dot in dots.rows):
        known.append("thick: 95 % interval" + " of the mean" * spread)
    if any(dot.after > 0 for dot in dots.rows):
        known.append("hollow: after the last layer")
    label = f"{dots.axis} ({'; '.join(known)})" if known else dots.axis
    if dots.reference:
        _, value, color = dots.reference
        axes.axvline(value, color=color, linestyle=":", linewidth=0.8, zorder=0)
        if any(dot.ratio > 0 for dot in dots.rows):
            label += "\ndotted line and (n x): against the text of the prompts"
    axes.set_xlabel(label)
    if values.size:  # from a little below the smallest to where the longest label has room
        low, high = float(values.min()) / 2, float(values.max())
        beside = any(dot.told for dot in dots.rows)
        axes.set_xlim(low, high * (1.5 if beside else max(high / low, 10) ** 0.2))
    return drawing


def _draw_dot(axes: Axes, y: int, dot: Dot) -> None:
    """One dot with its whiskers; the mean, and the ratio, beside it."""
    color, marker, _ = dot.look
    low, high = dot.spread
    if low <= high:  # both known
        axes.plot([low, high], [y, y], color=color, linewidth=0.9, marker="|", markersize=4)
    if dot.interval[0] < dot.interval[1]:
        axes.plot(dot.interval, [y, y], color=color, alpha=0.5, linewidth=5, solid_capstyle="butt")
    if dot.after > 0:
        axes.plot([dot.value, dot.after], [y, y], color=color, linewidth=0.6, linestyle=":")
        axes.plot(dot.after, y, marker, color=color, markerfacecolor="white", markersize=4)
    face = "white" if dot.hollow else color
    axes.plot(dot.value, y, marker, color=color, markerfacecolor=face, markersize=5, label=dot.name)
    if dot.told:  # in a column of its own, beside the axis
        place = axes.get_yaxis_transform()
        axes.text(1.01, y, drawable(dot.told), transform=place, va="center")
        return
    text = significant(dot.value)
    if dot.ratio > 0:
        text += f"  ({significant(dot.ratio, 3)} x)"
    end = max(dot.value, high) if low <= high else dot.value
    axes.annotate(text, (end, y), xytext=(4, 0), textcoords="offset points", va="center")


def figure_of_runs(
    title: str, rows: pd.DataFrame, looks: Mapping[str, GroupLook], ax: Given = None
) -> Figure:
    """Mean norms of compared runs from top to bottom, a panel a stage or table, on one axis.

    Args:
        title: the figure's title.
        rows: norms of a tidy table, with columns ``run``, ``panel`` and ``group``.
        looks: group -> colour and marker; others are not drawn.
        ax: an axes a panel; None: a figure of its own.
    """
    runs = list(dict.fromkeys(rows["run"]))
    names = list(dict.fromkeys(rows["panel"]))
    height = _FRAME_OF_RUNS + _RUN * max(len(runs), 2)
    shared = {"sharex": True, "sharey": True}
    drawing, grid = panels(title, DOUBLE_WIDTH, height, (1, len(names)), ax, **shared)
    looks = {group: look for group, look in looks.items() if (rows["group"] == group).any()}
    values = _finite(rows.loc[rows["group"].isin(looks), ["mean", "q05", "q95"]])
    for axes, panel in zip(grid[0], names, strict=True):
        axes.set_title(drawable(str(panel)), loc="left")
        axes.set_xlabel("L2 norm")
        for place, (group, look) in enumerate(looks.items()):
            here = rows[(rows["panel"] == panel) & (rows["group"] == group)]
            lines = [runs.index(run) + 0.3 * (place - (len(looks) - 1) / 2) for run in here["run"]]
            axes.hlines(lines, here["q05"], here["q95"], color=look.color, linewidth=1)
            axes.plot(here["mean"], lines, look.marker, color=look.color, linestyle="none")
        axes.grid(axis="y", color="0.9", linewidth=0.5)
    for axes in grid[0]:
        if asks_for_log(values):
            use_log(axes, "x", values)
        else:
            axes.set_xlim(left=0)
        axes.set_ylim(len(runs) - 0.5, -0.5)
        axes.set_yticks(range(len(runs)), labels=[drawable(str(run)) for run in runs])
    handles = [
        Line2D([], [], color=look.color, marker=look.marker, linestyle="none", label=group)
        for group, look in looks.items()
    ]
    handles.append(Line2D([], [], color="0.4", linewidth=1, label="5-95 % of tokens or rows"))
    legend_below(drawing, grid, handles)
    return drawing


def _finite(values: object) -> NDArray[np.float64]:
    """The positive numbers that an axis has to hold."""
    flat = np.asarray(values, dtype=float).ravel()
    held: NDArray[np.float64] = flat[np.isfinite(flat) & (flat > 0)]
    return held
