"""Compared runs from top to bottom, a panel a stage or table: a dot a mean, a bar 5-95 %."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normprobe.report.figures.lines import Given, legend_below, panels
from normprobe.report.figures.style import DOUBLE_WIDTH, GroupLook, asks_for_log, drawable, use_log

_LINE = 0.3  # inches a run
_FRAME = 1.1  # inches for title, axis and legend


def dot_panels(title: str, rows: pd.DataFrame, looks: Mapping[str, GroupLook], ax: Given) -> Figure:
    """Mean norms of every run on one shared axis."""
    runs = list(dict.fromkeys(rows["run"]))
    names = list(dict.fromkeys(rows["panel"]))
    height, shared = _FRAME + _LINE * max(len(runs), 2), {"sharex": True, "sharey": True}
    drawing, grid = panels(title, DOUBLE_WIDTH, height, (1, len(names)), ax, **shared)
    groups = [group for group in looks if (rows["group"] == group).any()]
    for axes, panel in zip(grid[0], names, strict=True):
        axes.set_title(drawable(str(panel)), loc="left")
        axes.set_xlabel("L2 norm")
        for place, group in enumerate(groups):
            here = rows[(rows["panel"] == panel) & (rows["group"] == group)]
            lines = [runs.index(run) + 0.3 * (place - (len(groups) - 1) / 2) for run in here["run"]]
            look = looks[group]
            axes.hlines(lines, here["norm_q05"], here["norm_q95"], color=look.color, linewidth=1)
            axes.plot(here["norm_mean"], lines, look.marker, color=look.color, linestyle="none")
        axes.grid(axis="y", color="0.9", linewidth=0.5)
    drawn = rows[rows["group"].isin(groups)][["norm_mean", "norm_q05", "norm_q95"]]
    for axes in grid[0]:
        if asks_for_log(drawn.to_numpy(float)):
            use_log(axes, "x", drawn.to_numpy(float))
        else:
            axes.set_xlim(left=0)
        axes.set_ylim(len(runs) - 0.5, -0.5)
        axes.set_yticks(range(len(runs)), labels=[drawable(str(run)) for run in runs])
    handles = [
        Line2D([], [], color=look.color, marker=look.marker, linestyle="none", label=group)
        for group, look in looks.items()
        if group in groups
    ]
    handles.append(Line2D([], [], color="0.4", linewidth=1, label="5-95 % of tokens or rows"))
    legend_below(drawing, grid, handles)
    return drawing
