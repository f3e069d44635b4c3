"""The paper's theory beside the measurement: Eq. 13, 15, 17 and the assumptions of Section 3.1."""

import math
from string import ascii_lowercase
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from normprobe.measurements.layers.assumptions import CRITERIA
from normprobe.measurements.layers.theory_panels import PANELS
from normprobe.report.figures.lines import Given, draw_column, ends_drawn, legend_below, panels
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    GROUP_LOOKS,
    asks_for_log,
    mark_layers,
    use_log,
)
from normprobe.schema import TEXT, VISUAL

TABLES = ("theory", "assumptions")

_COLUMNS = 3
_HEIGHT = 1.75  # inches a row of panels
_HOLDS = "#F7EFC6"  # behind everything
_NUMBERS = {criterion.column: criterion.number for criterion in CRITERIA}


def figure(title: str, theory: pd.DataFrame, assumptions: pd.DataFrame, ax: Given = None) -> Figure:
    """A panel a number over the decoder layers; yellow is the range in which it holds."""
    rows = -(-len(PANELS) // _COLUMNS)
    height = _HEIGHT * rows + 0.6
    drawing, grid = panels(title, DOUBLE_WIDTH, height, (rows, _COLUMNS), ax, sharex=True)
    ranges = assumptions.set_index("number")[["low", "high"]].astype(float)
    for letter, panel, axes in zip(ascii_lowercase, PANELS, grid.flat, strict=False):
        axes.set_title(f"({letter}) {panel.title}", loc="left")
        mark_layers(axes, int(theory["layer"].max()))
        axes.set_xlabel("")
        for line in panel.lines:
            draw_column(
                axes, theory[theory[line.column].notna()], line.column, line.look, line.name
            )
        if not axes.get_lines():
            axes.set_yticks([])
            axes.text(0.5, 0.5, "no number", transform=axes.transAxes, ha="center")
            continue
        if panel.ratio and asks_for_log(theory[panel.judged]):
            use_log(axes, "y", theory[panel.judged])
        number = _NUMBERS.get(panel.judged)
        if number in ranges.index:
            _add_range(axes, *ranges.loc[number])
        if panel.own_legend:
            bottom, top = axes.get_ylim()
            axes.set_ylim(bottom, top + 0.45 * (top - bottom))  # room for it
            axes.legend(loc="upper left", fontsize=6)
    for axes in grid[-1]:
        axes.set_xlabel("decoder layer")
    _add_legend(drawing, grid, judged=not ranges.empty)
    return drawing


def _add_range(axes: Axes, low: float, high: float) -> None:
    """The range in which the number holds; its ends are always in sight."""
    ends = [end for end in (low, high) if math.isfinite(end)]
    axes.update_datalim([(0, end) for end in ends], updatex=False)
    axes.autoscale_view(scalex=False)
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top)
    axes.axhspan(max(low, bottom), min(high, top), color=_HOLDS, zorder=0, linewidth=0)


def _add_legend(drawing: Figure, grid: NDArray[Any], judged: bool) -> None:
    handles: list[Artist] = [
        Line2D([], [], **GROUP_LOOKS[group]._asdict(), label=group) for group in (VISUAL, TEXT)
    ]
    handles += ends_drawn(grid.flat)
    if judged:
        handles.append(Patch(color=_HOLDS, label="range in which each line holds"))
    legend_below(drawing, grid, handles)
