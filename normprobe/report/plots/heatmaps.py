"""Where text attends, laid over the image: a row of panels a query, a panel a layer."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from normprobe.report.plots.glyphs import drawable
from normprobe.report.plots.style import DOUBLE_WIDTH, new_figure

TABLES = ("heatmaps",)
IMAGES = ("image",)
OPTIONAL = True  # there is no table where the places of visual tokens are unknown

_COLUMNS = 4
_CANVAS = 448  # pixels of the longer side of a map
_MOST = 99.0  # percentile at which the colours end: sinks draw a hundred times the even share


def figure(title: str, heatmaps: pd.DataFrame, image: NDArray[Any]) -> Figure:
    """Attention per area of the image, 1 where it is what even attention would give.

    Args:
        title: the figure's title.
        heatmaps: ``heatmaps.csv``.
        image: ``[height, width, 3]``.
    """
    panels = list(heatmaps.groupby(["query", "layer"], sort=False))
    layers = heatmaps["layer"].nunique()
    columns = min(layers, _COLUMNS)
    lines = heatmaps["query"].nunique() * -(-layers // columns)
    height, width = image.shape[:2]
    panel = (DOUBLE_WIDTH - 1.0) / _COLUMNS
    drawing = new_figure(
        DOUBLE_WIDTH, 0.6 + lines * (0.2 + panel * min(height / width, 2.0)), title
    )
    grid = drawing.subplots(lines, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    maps = [attention_map(rows, width, height) for _, rows in panels]
    top = max(float(np.nanpercentile(np.concatenate([m.ravel() for m in maps]), _MOST)), 1.0)
    gray = image[..., :3].mean(-1)
    order = {query: place for place, query in enumerate(heatmaps["query"].unique())}
    drawn = None
    counts = dict.fromkeys(order, 0)
    for ((query, layer), _), values in zip(panels, maps, strict=True):
        line, column = divmod(counts[query], columns)
        counts[query] += 1
        axes = grid[order[query] * -(-layers // columns) + line, column]
        axes.imshow(gray, cmap="gray", extent=(0, 1, 1, 0), aspect=height / width)
        drawn = axes.imshow(
            values,
            cmap="inferno",
            vmin=0,
            vmax=top,
            alpha=0.65,
            extent=(0, 1, 1, 0),
            aspect=height / width,
            interpolation="nearest",
        )
        axes.set_title(f"{_short(str(query))}, layer {layer}")
    if drawn is not None:
        bar = drawing.colorbar(drawn, ax=grid, shrink=0.8, extend="max", aspect=30)
        bar.set_label("attention per area (1: even)")
    return drawing


def attention_map(rows: pd.DataFrame, width: int, height: int) -> NDArray[np.float64]:
    """Attention per area on a canvas with the image's proportions, NaN where no token looks.

    Every token spreads its weight over its place; views of one place at several scales add up.
    Divided by the total: 1 is what each place would draw if attention were even over the image.

    Args:
        rows: of ``heatmaps.csv``, one layer and query.
        width: of the image, in pixels.
        height: of the image, in pixels.
    """
    scale = _CANVAS / max(width, height)
    shape = max(1, round(height * scale)), max(1, round(width * scale))
    canvas, seen = np.zeros(shape), np.zeros(shape, dtype=bool)
    total = float(rows["attention"].sum()) or 1.0
    edges = rows[["left", "top", "right", "bottom"]].to_numpy() * (*shape[::-1], *shape[::-1])
    weights = rows["attention"].to_numpy() / total * canvas.size
    for (left, top, right, bottom), weight in zip(edges.round().astype(int), weights, strict=True):
        area = (right - left) * (bottom - top)
        if area > 0:
            canvas[top:bottom, left:right] += weight / area
            seen[top:bottom, left:right] = True
    canvas[~seen] = np.nan
    return canvas


def _short(query: str) -> str:
    return drawable(query if len(query) <= 20 else f"{query[:19]}\N{HORIZONTAL ELLIPSIS}")
