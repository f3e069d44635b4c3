"""Attention of all text to the image, head by head: how much, and how high in the image."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from normprobe.report.figures.lines import Given, panels
from normprobe.report.figures.style import DOUBLE_WIDTH, drawable

TABLES = ("heads",)

_HEIGHT = 3.0  # inches
_NAMED = 9  # layers, at most
_PANELS = (
    ("share_mean", "(a) attention on visual tokens", "viridis", "share"),
    ("entropy_mean", "(b) entropy over them", "viridis", "1: even"),
    ("vertical_center", "(c) vertical center", "PuOr", "0: top, 1: bottom"),
)


def figure(title: str, heads: pd.DataFrame, ax: Given = None) -> Figure:
    """A row a layer, a column a head; grey where there is no number."""
    query = heads["query"].iloc[0]
    told = heads[heads["query"] == query]
    heading = f"{title}\nattention of {drawable(str(query))}, head by head"
    drawing, grid = panels(heading, DOUBLE_WIDTH, _HEIGHT, (1, len(_PANELS)), ax, sharey=True)
    layers = sorted(told["layer"].unique())
    for axes, (column, words, colors, meaning) in zip(grid[0], _PANELS, strict=True):
        cells = told.pivot(index="layer", columns="head", values=column)
        # Of share the colours reach to the largest: few heads look at the image alone.
        most = 1.0 if column != "share_mean" else float(np.nanmax([*cells.to_numpy().flat, 1e-9]))
        drawn = axes.pcolormesh(
            np.arange(cells.shape[1] + 1) + 0.5,
            np.append(cells.index.to_numpy() - 0.5, cells.index[-1] + 0.5),
            np.ma.masked_invalid(cells.to_numpy(float)),
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
        axes.set_yticks(layers[:: -(-len(layers) // _NAMED)])
        axes.set_ylim(layers[-1] + 0.5, layers[0] - 0.5)
    grid[0, 0].set_ylabel("decoder layer")
    return drawing
