"""Checkpoints of one training, coloured by step: does the gap close? (Figure 5)."""

import pandas as pd
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy import linspace

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
    # The pale end of the map would vanish on paper.
    colors = ListedColormap(colormaps["viridis_r"](linspace(0.08, 1.0, 256)))
    scale = Normalize(compare["step"].min(), compare["step"].max())
    for axes, group, letter in zip(panels, (VISUAL, TEXT), "ab", strict=True):
        axes.set_title(f"({letter}) {group} tokens", loc="left")
        rows = compare[(compare["group"] == group) & compare["cosine_mean"].notna()]
        for step in sorted(rows["step"].unique()):
            checkpoint = rows[rows["step"] == step].sort_values("layer")
            axes.plot(
                checkpoint["layer"],
                checkpoint["cosine_mean"],
                color=colors(scale(step)),
                linestyle=GROUP_LOOKS[group].linestyle,
                clip_on=False,
            )
        mark_layers(axes, int(compare["layer"].max()))
    panels[0].set_ylabel("cosine, layer input and output")
    panels[0].set_ylim(top=1.0)
    drawing.colorbar(
        ScalarMappable(scale, colors),
        ax=list(panels),
        label="training step",
        pad=0.01,
        ticks=MaxNLocator(integer=True),
        format=FuncFormatter(lambda step, _: f"{step:.0f}"),
    )
    return drawing
