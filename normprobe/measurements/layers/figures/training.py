"""Checkpoints of one training, coloured by step: does the gap close? (Figure 5)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from normprobe.report.figures.lines import draw_line
from normprobe.report.figures.panels import Given, panels
from normprobe.report.figures.style import DOUBLE_WIDTH, GROUP_LOOKS, mark_layers
from normprobe.schema import TEXT, VISUAL

TABLES = ("compare",)

_HEIGHT = 2.7  # inches


def figure(title: str, compare: pd.DataFrame, ax: Given = None) -> Figure:
    """Cosine between layer input and output of both modalities, a line a checkpoint.

    Args:
        title: the figure's title.
        compare: ``compare.csv`` of layers runs with a ``step``.
        ax: two axes to draw in; None: a figure of its own.
    """
    shared: dict[str, Any] = {"sharex": True, "sharey": True}
    drawing, grid = panels(title, DOUBLE_WIDTH, _HEIGHT, (1, 2), ax, **shared)
    scale = step_scale(compare["step"])
    for axes, group, letter in zip(grid[0], (VISUAL, TEXT), "ab", strict=True):
        axes.set_title(f"({letter}) {group} tokens", loc="left")
        rows = compare[(compare["group"] == group) & compare["cosine_mean"].notna()]
        for step in sorted(rows["step"].unique()):
            checkpoint = rows[rows["step"] == step].sort_values("layer")
            look = GROUP_LOOKS[group]._replace(color=step_color(scale, step))
            size = 4 if len(checkpoint) == 1 else 0  # many lines: marks would hide them
            draw_line(axes, checkpoint, "cosine_mean", look, "", markersize=size, clip_on=False)
        mark_layers(axes, int(compare["layer"].max()))
    grid[0, 0].set_ylabel("cosine, layer input and output")
    lowest = compare.loc[compare["group"].isin([VISUAL, TEXT]), "cosine_mean"].min()
    for axes in grid[0]:
        axes.set_ylim(lowest - 0.05 * max(1 - lowest, 1e-3), 1.0)
    add_step_bar(drawing, scale, list(grid[0]), "training step")
    return drawing


def step_scale(steps: pd.Series) -> ScalarMappable:
    """From the steps of a training to colours, early ones pale."""
    # The pale end of the map would vanish on paper.
    colors = ListedColormap(colormaps["viridis_r"](np.linspace(0.08, 1.0, 256)))
    return ScalarMappable(Normalize(steps.min(), steps.max()), colors)


def step_color(scale: ScalarMappable, step: int) -> str:
    """The colour of a step, as matplotlib takes it."""
    red, green, blue, _ = scale.to_rgba(np.array(step))
    return to_hex((red, green, blue))


def add_step_bar(
    drawing: Figure, scale: ScalarMappable, panels: Sequence[Axes], label: str
) -> None:
    """The colours of ``step_scale`` as a bar beside panels."""
    drawing.colorbar(
        scale,
        ax=list(panels),
        label=label,
        pad=0.01,
        ticks=MaxNLocator(integer=True),
        format=FuncFormatter(lambda step, _: f"{step:.0f}"),
    )
