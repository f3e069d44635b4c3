"""Checkpoints of one training, coloured by step: does the gap close? (Figure 5)."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from normprobe.measurements.layers.figures.steps import add_step_bar, step_color, step_scale
from normprobe.report.figures.lines import Given, draw_line, panels
from normprobe.report.figures.style import DOUBLE_WIDTH, GROUP_LOOKS, mark_layers
from normprobe.schema import TEXT, VISUAL

TABLES = ("compare",)

_HEIGHT = 2.7  # inches


def figure(title: str, compare: pd.DataFrame, ax: Given = None) -> Figure:
    """Cosine between layer input and output of both modalities, a line a checkpoint."""
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
