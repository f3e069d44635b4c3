"""What attention and the MLP of each layer write: how much, against the state, and how it turns."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normprobe.measurements.layers.branches import BRANCH_WORDS
from normprobe.report.figures.lines import Given, draw_column, ends_drawn, legend_below, panels
from normprobe.report.figures.style import DOUBLE_WIDTH, GROUP_LOOKS, log_or_from_zero, mark_layers
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


def figure(title: str, branches: pd.DataFrame, ax: Given = None) -> Figure:
    """A panel a metric over the layers: colours are token groups, line styles branches."""
    drawing, grid = panels(title, DOUBLE_WIDTH, _HEIGHT, (1, len(BRANCH_PANELS)), ax)
    for axes, letter, (metric, name) in zip(grid[0], "abc", BRANCH_PANELS.items(), strict=True):
        axes.set_title(f"({letter}) {name}", loc="left")
        for branch, group, rows in branch_lines(branches):
            look = GROUP_LOOKS[group]._replace(linestyle=BRANCH_LINES[branch])
            draw_column(axes, rows, f"{metric}_mean", look, f"{branch}, {group}")
        mark_layers(axes, int(branches["layer"].max()))
        drawn = branches[branches["group"].isin([VISUAL, TEXT])]
        log_or_from_zero(axes, drawn[f"{metric}_mean"])
    shown = {group: branch for branch, group, _ in branch_lines(branches)}
    handles: list[Line2D] = [
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
    legend_below(drawing, grid, [*handles, *ends_drawn(grid.flat)])
    return drawing


def branch_lines(branches: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """Branch, group and rows of each line."""
    parts = [
        (branch, group, branches[(branches["branch"] == branch) & (branches["group"] == group)])
        for branch in BRANCHES
        for group in (VISUAL, TEXT)
    ]
    return [part for part in parts if len(part[2])]
