"""Checkpoints of one training, coloured by step: does the gap close? (Figure 5)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from normprobe.report.figures.style import DOUBLE_WIDTH, GROUP_LOOKS, mark_layers, new_figure
from normprobe.schema import TEXT, VISUAL

TABLES = ("compare",)

_HEIGHT = 2.7  # inches


def figure(title: str, compare: pd.DataFrame) -> Figure:
    """Cosine between layer input and output of both modalities, a line a checkpoint.

    Args:
        title: the figure's title.
        compare: ``compare.csv`` of layers runs with a ``step``.
    """
    drawing = new_figure(DOUBLE_WIDTH, _HEIGHT, title)
    panels = drawing.subplots(1, 2, sharex=True, sharey=True)
    scale = step_scale(compare["step"])
    for axes, group, letter in zip(panels, (VISUAL, TEXT), "ab", strict=True):
        axes.set_title(f"({letter}) {group} tokens", loc="left")
        rows = compare[(compare["group"] == group) & compare["cosine_mean"].notna()]
        for step in sorted(rows["step"].unique()):
            checkpoint = rows[rows["step"] == step].sort_values("layer")
            axes.plot(
                checkpoint["layer"],
                checkpoint["cosine_mean"],
                color=step_color(scale, step),
                linestyle=GROUP_LOOKS[group].linestyle,
                clip_on=False,
            )
        mark_layers(axes, int(compare["layer"].max()))
    panels[0].set_ylabel("cosine, layer input and output")
    panels[0].set_ylim(top=1.0)
    add_step_bar(drawing, scale, panels, "training step")
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
