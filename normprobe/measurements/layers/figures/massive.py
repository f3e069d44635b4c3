"""Massive activations against depth: how few dimensions and tokens hold what is large."""

from string import ascii_lowercase

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from normprobe.measurements.layers.massive import PANELS, Panel
from normprobe.report.figures.lines import (
    Given,
    draw_column,
    ends_drawn,
    in_sight,
    legend_below,
    panels,
)
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    GROUP_LOOKS,
    asks_for_log,
    mark_layers,
    use_log,
)

TABLES = ("massive",)

_COLUMNS = 3
_HEIGHT = 1.9  # inches a row of panels


def figure(title: str, massive: pd.DataFrame, ax: Given = None) -> Figure:
    """A panel a number over the decoder layers, with 95 % intervals and bands."""
    rows = -(-len(PANELS) // _COLUMNS)
    height = _HEIGHT * rows + 0.6
    drawing, grid = panels(title, DOUBLE_WIDTH, height, (rows, _COLUMNS), ax, sharex=True)
    for letter, panel, axes in zip(ascii_lowercase, PANELS, grid.flat, strict=False):
        axes.set_title(f"({letter}) {panel.title}", loc="left")
        mark_layers(axes, int(massive["layer"].max()))
        axes.set_xlabel("")
        _draw_panel(axes, massive, panel)
    for axes in grid[-1]:
        axes.set_xlabel("decoder layer")
    present = [group for group in GROUP_LOOKS if (massive["group"] == group).any()]
    handles: list[Line2D] = [
        Line2D([], [], **GROUP_LOOKS[curve.name]._asdict(), label=curve.name)
        for curve in PANELS[0].curves
        if curve.name in present
    ]
    legend_below(drawing, grid, [*handles, *ends_drawn(grid.flat)])
    return drawing


def _draw_panel(axes: Axes, massive: pd.DataFrame, panel: Panel) -> None:
    drawn = []
    for curve in panel.curves:
        rows = massive[(massive["group"] == curve.group) & massive[curve.column].notna()]
        draw_column(axes, rows, curve.column, curve.look, curve.name)
        drawn.append(in_sight(rows, curve.column))
    values = np.concatenate(drawn)
    if not values.size:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no number", transform=axes.transAxes, ha="center")
        return
    if panel.ratio and asks_for_log(values):
        use_log(axes, "y", values)
    else:
        # Room above a line at zero, and no line on the axis.
        top = values.max() * 1.08 or 1.0
        axes.set_ylim(-0.04 * top, top)
        if not values.any():
            axes.set_yticks([0.0])  # no other number was seen
    if not panel.ratio:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if any(curve.name not in GROUP_LOOKS for curve in panel.curves):
        axes.legend(loc="best", fontsize=6)
