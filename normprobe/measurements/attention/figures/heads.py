"""Attention of all text to the image, head by head: how much, and how high in the image."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from normprobe.report.figures.glyphs import drawable
from normprobe.report.figures.style import DOUBLE_WIDTH, new_figure

TABLES = ("heads",)

_HEIGHT = 3.0  # inches
_PANELS = (
    ("share_mean", "(a) attention on visual tokens", "viridis", "share"),
    ("entropy_mean", "(b) entropy over them", "viridis", "1: even"),
    ("vertical_center", "(c) vertical center", "PuOr", "0: top, 1: bottom"),
)


def figure(title: str, heads: pd.DataFrame) -> Figure:
    """A row a layer, a column a head; grey where there is no number.

    Args:
        title: the figure's title.
        heads: ``heads.csv``; its first query is drawn.
    """
    query = heads["query"].iloc[0]
    told = heads[heads["query"] == query]
    drawing = new_figure(DOUBLE_WIDTH, _HEIGHT, f"{title}, {drawable(str(query))}")
    panels = drawing.subplots(1, len(_PANELS), sharey=True)
    for axes, (column, words, colors, meaning) in zip(panels, _PANELS, strict=True):
        grid = told.pivot(index="layer", columns="head", values=column)
        # Of share the colours reach to the largest: few heads look at the image alone.
        most = 1.0 if column != "share_mean" else float(np.nanmax([*grid.to_numpy().flat, 1e-9]))
        drawn = axes.pcolormesh(
            np.arange(grid.shape[1] + 1) + 0.5,
            np.append(grid.index.to_numpy() - 0.5, grid.index[-1] + 0.5),
            np.ma.masked_invalid(grid.to_numpy(float)),
            cmap=colors,
            vmin=0,
            vmax=most,
        )
        axes.set_facecolor("0.8")
        axes.set_title(words, loc="left")
        axes.set_xlabel("head")
        axes.xaxis.get_major_locator().set_params(integer=True)
        bar = drawing.colorbar(drawn, ax=axes, location="bottom", shrink=0.9, aspect=25)
        bar.set_label(meaning)
    panels[0].set_ylabel("decoder layer")
    panels[0].yaxis.get_major_locator().set_params(integer=True)
    panels[0].invert_yaxis()
    return drawing
