"""One metric against depth: a line for each token group, a band where quantiles are kept."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from normprobe.report.figures.lines import draw_line
from normprobe.report.figures.panels import Given, entries, legend_below, panels
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    GROUP_LOOKS,
    GroupLook,
    log_or_from_zero,
    mark_layers,
)
from normprobe.schema import SPECIAL, STRUCTURAL, TEXT, VISUAL

#: Back to front. ``non_visual`` is the sum of two of these and stays in the CSV.
GROUPS = (STRUCTURAL, SPECIAL, TEXT, VISUAL)
BAND = ("q05", "q95")
INTERVAL = ("ci_low", "ci_high")
_HEIGHT = 2.7  # inches


def two_panels(
    title: str, layers: pd.DataFrame, left: str, right: str, ax: Given
) -> tuple[Figure, NDArray[Any]]:
    """Two metrics side by side over the same layers.

    Args:
        title: the figure's title.
        layers: ``layers.csv``.
        left: metric of the left panel.
        right: metric of the right panel.
        ax: two axes to draw in; None: a figure of its own.

    Returns:
        The figure and its axes, ``[1, 2]``.
    """
    drawing, grid = panels(title, DOUBLE_WIDTH, _HEIGHT, (1, 2), ax)
    for axes, metric in zip(grid[0], (left, right), strict=True):
        draw_metric(axes, layers, metric)
        mark_layers(axes, int(layers["layer"].max()))
    return drawing, grid


def draw_metric(axes: Axes, layers: pd.DataFrame, metric: str, **more: Any) -> None:
    """Draw means over tokens as lines, with their intervals, and the 5-95 % band of the tokens.

    Each band is drawn where the table has it.

    Args:
        axes: where to draw.
        layers: ``layers.csv``.
        metric: a metric of ``schema.TOKEN_METRICS``.
        **more: for ``draw_line``.
    """
    for group, rows in _groups(layers, metric):
        look = GROUP_LOOKS[group]
        draw_line(axes, rows, f"{metric}_mean", look, group, **more)
        if has_band(layers, metric):
            low, high = (rows[f"{metric}_{end}"] for end in BAND)
            axes.fill_between(rows["layer"], low, high, color=look.color, alpha=0.15, linewidth=0)
        if has_interval(layers, metric):
            low, high = (rows[f"{metric}_mean_{end}"] for end in INTERVAL)
            axes.fill_between(rows["layer"], low, high, color=look.color, alpha=0.4, linewidth=0)


def draw_column(axes: Axes, rows: pd.DataFrame, column: str, look: GroupLook, label: str) -> None:
    """Draw a column as a line and its interval as a band, where the table has them.

    Args:
        axes: where to draw.
        rows: one a layer.
        column: what is drawn; its interval is in ``<column>_ci_low`` and ``_ci_high``.
        look: colour, marker and line.
        label: in the legend.
    """
    if column not in rows or rows[column].isna().all():
        return
    draw_line(axes, rows, column, look, label, markersize=3)
    ends = [f"{column}_ci_low", f"{column}_ci_high"]
    if set(ends) <= set(rows.columns):
        low, high = (rows[end] for end in ends)
        axes.fill_between(rows["layer"], low, high, color=look.color, alpha=0.25, linewidth=0)


def use_log_if_wide(axes: Axes, layers: pd.DataFrame, metric: str) -> None:
    """A log axis when the drawn values, band included, span more than a factor of 10."""
    log_or_from_zero(axes, drawn_values(layers, metric))


def drawn_values(layers: pd.DataFrame, metric: str) -> NDArray[np.float64]:
    """Every mean and band end that ``draw_metric`` draws."""
    columns = [f"{metric}_mean"]
    if has_band(layers, metric):
        columns += [f"{metric}_{end}" for end in BAND]
    if has_interval(layers, metric):
        columns += [f"{metric}_mean_{end}" for end in INTERVAL]
    groups = [rows[columns].to_numpy(float).ravel() for _, rows in _groups(layers, metric)]
    values: NDArray[np.float64] = np.concatenate([np.empty(0), *groups])
    finite: NDArray[np.float64] = values[np.isfinite(values)]
    return finite


def has_band(layers: pd.DataFrame, metric: str) -> bool:
    """Whether the table keeps the quantiles of a metric."""
    return all(f"{metric}_{end}" in layers for end in BAND)


def has_interval(layers: pd.DataFrame, metric: str) -> bool:
    """Whether the table has a confidence interval of a mean."""
    columns = [f"{metric}_mean_{end}" for end in INTERVAL]
    return all(column in layers and layers[column].notna().any() for column in columns)


def add_legend(drawing: Figure, grid: NDArray[Any], layers: pd.DataFrame, *extra: Line2D) -> None:
    """One legend below the panels: the groups of any panel, what bands are, then ``extra``."""
    lines = entries(grid)
    handles: list[Artist] = [lines[group] for group in reversed(GROUPS) if group in lines]
    if not handles:
        return
    handles.append(Patch(color="0.8", label="5-95 % of tokens"))
    if has_interval(layers, "norm") or has_interval(layers, "cosine"):
        handles.append(Patch(color="0.55", label="95 % interval of the mean"))
    handles += extra
    legend_below(drawing, grid, handles)


def _groups(layers: pd.DataFrame, metric: str) -> list[tuple[str, pd.DataFrame]]:
    present = layers[layers[f"{metric}_mean"].notna()].sort_values("layer")
    parts = ((group, present[present["group"] == group]) for group in GROUPS)
    return [(group, rows) for group, rows in parts if len(rows)]
