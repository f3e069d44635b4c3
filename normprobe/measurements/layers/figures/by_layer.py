"""One metric against depth: a line for each token group, and the spread of its tokens."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from normprobe.report.figures.lines import (
    Given,
    draw_column,
    ends_drawn,
    entries,
    in_sight,
    legend_below,
    panels,
)
from normprobe.report.figures.style import DOUBLE_WIDTH, GROUP_LOOKS, log_or_from_zero, mark_layers
from normprobe.schema import SPECIAL, STRUCTURAL, TEXT, VISUAL

#: Back to front. ``non_visual`` is the sum of two of these and stays in the CSV.
GROUPS = (STRUCTURAL, SPECIAL, TEXT, VISUAL)
SPREAD = ("q05", "q95")
_HEIGHT = 2.7  # inches


def two_panels(
    title: str, layers: pd.DataFrame, left: str, right: str, ax: Given
) -> tuple[Figure, NDArray[Any]]:
    """Two metrics side by side over the same layers.

    Returns:
        The figure and its axes, ``[1, 2]``.
    """
    drawing, grid = panels(title, DOUBLE_WIDTH, _HEIGHT, (1, 2), ax)
    for axes, metric in zip(grid[0], (left, right), strict=True):
        draw_metric(axes, layers, metric)
        mark_layers(axes, int(layers["layer"].max()))
    return drawing, grid


def draw_metric(axes: Axes, layers: pd.DataFrame, metric: str, **more: Any) -> None:
    """Draw means over tokens, with their intervals and bands, and where 5-95 % of the tokens lie.

    Each is drawn where the table has it.
    """
    for group, rows in _groups(layers, metric):
        look = GROUP_LOOKS[group]
        if has_spread(layers, metric):
            low, high = (rows[f"{metric}_{end}"] for end in SPREAD)
            axes.fill_between(rows["layer"], low, high, color=look.color, alpha=0.13, linewidth=0)
        draw_column(axes, rows, f"{metric}_mean", look, group, markersize=4, **more)


def use_log_if_wide(axes: Axes, layers: pd.DataFrame, metric: str) -> None:
    """A log axis when what is drawn spans more than a factor of 10."""
    log_or_from_zero(axes, drawn_values(layers, metric))


def drawn_values(layers: pd.DataFrame, metric: str) -> NDArray[np.float64]:
    """Every number that a panel of ``draw_metric`` keeps in sight."""
    spread = [f"{metric}_{end}" for end in SPREAD] if has_spread(layers, metric) else []
    values = [np.empty(0)]
    for _, rows in _groups(layers, metric):
        values += [in_sight(rows, f"{metric}_mean"), rows[spread].to_numpy(float).ravel()]
    together: NDArray[np.float64] = np.concatenate(values)
    finite: NDArray[np.float64] = together[np.isfinite(together)]
    return finite


def has_spread(layers: pd.DataFrame, metric: str) -> bool:
    """Whether the table keeps the quantiles of a metric."""
    return all(f"{metric}_{end}" in layers for end in SPREAD)


def add_legend(drawing: Figure, grid: NDArray[Any], *extra: Line2D) -> None:
    """One legend below the panels: groups, what is filled and outlined, then ``extra``."""
    lines = entries(grid)
    handles: list[Artist] = [lines[group] for group in reversed(GROUPS) if group in lines]
    if not handles:
        return
    handles += [Patch(color="0.87", label="5-95 % of tokens"), *ends_drawn(grid.flat), *extra]
    legend_below(drawing, grid, handles)


def _groups(layers: pd.DataFrame, metric: str) -> list[tuple[str, pd.DataFrame]]:
    present = layers[layers[f"{metric}_mean"].notna()].sort_values("layer")
    parts = ((group, present[present["group"] == group]) for group in GROUPS)
    return [(group, rows) for group, rows in parts if len(rows)]
