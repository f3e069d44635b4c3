"""What attention and the MLP of each layer write: how much, against the state, and how it turns."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from normprobe.measurements.layers.branches.words import BRANCH_WORDS
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    GROUP_LOOKS,
    asks_for_log,
    mark_layers,
    new_figure,
    use_log,
)
from normprobe.schema import BRANCHES, TEXT, VISUAL

TABLES = ("branches",)

_HEIGHT = 2.6  # inches
BRANCH_LINES: dict[str, Any] = dict(zip(BRANCHES, ("-", ":", "--"), strict=True))
#: Metric and what its panel is called.
BRANCH_PANELS = {
    "update_norm": "L2 norm of the update, ‖a‖",
    "relative_update": "relative update, ‖a‖ / ‖x‖",
    "angle": "angular velocity (radians)",
}


def figure(title: str, branches: pd.DataFrame) -> Figure:
    """A panel a metric over the layers: colours are token groups, line styles branches.

    Args:
        title: the figure's title.
        branches: ``branches.csv``.
    """
    drawing = new_figure(DOUBLE_WIDTH, _HEIGHT, title)
    panels = drawing.subplots(1, len(BRANCH_PANELS))
    for axes, letter, (metric, name) in zip(panels, "abc", BRANCH_PANELS.items(), strict=True):
        axes.set_title(f"({letter}) {name}", loc="left")
        values = [_draw(axes, *part, metric) for part in branch_lines(branches)]
        mark_layers(axes, int(branches["layer"].max()))
        drawn = pd.concat(values) if values else pd.Series(dtype=float)
        if asks_for_log(drawn):
            use_log(axes, "y", drawn)
        else:
            axes.set_ylim(bottom=0)
    shown = {group: branch for branch, group, _ in branch_lines(branches)}
    handles: list[Line2D | Patch] = [
        Line2D(
            [], [], color=GROUP_LOOKS[group].color, marker=GROUP_LOOKS[group].marker, label=group
        )
        for group in (VISUAL, TEXT)
        if group in shown
    ]
    handles += [
        Line2D([], [], color="0.3", linestyle=line, label=BRANCH_WORDS[branch])
        for branch, line in BRANCH_LINES.items()
        if (branches["branch"] == branch).any()
    ]
    handles.append(Patch(color="0.7", label="95 % CI of the mean"))
    drawing.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return drawing


def branch_lines(branches: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """Branch, group and rows of each line."""
    parts = [
        (branch, group, branches[(branches["branch"] == branch) & (branches["group"] == group)])
        for branch in BRANCHES
        for group in (VISUAL, TEXT)
    ]
    return [part for part in parts if len(part[2])]


def _draw(
    axes: Axes, branch: str, group: str, rows: pd.DataFrame, metric: str
) -> "pd.Series[float]":
    """A line and its interval; what was drawn."""
    look = GROUP_LOOKS[group]
    mean = rows[f"{metric}_mean"]
    axes.plot(
        rows["layer"],
        mean,
        color=look.color,
        marker=look.marker,
        markersize=3,
        markevery=max(1, len(rows) // 12),
        linestyle=BRANCH_LINES[branch],
        zorder=3,
    )
    low, high = rows[f"{metric}_mean_ci_low"], rows[f"{metric}_mean_ci_high"]
    axes.fill_between(rows["layer"], low, high, color=look.color, alpha=0.25, linewidth=0)
    return mean
