"""Where text attends, laid over each image: rows of panels a query and run, a panel a layer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from normprobe.report.figures.glyphs import shortened
from normprobe.report.figures.over_picture import canvas_shape, on_canvas, over_picture
from normprobe.report.figures.style import DOUBLE_WIDTH, new_figure
from normprobe.schema import IMAGE

TABLES = ("heatmaps",)
IMAGES = True

_COLUMNS = 4
_BLOCK = ["run", "query", IMAGE]  # what a row of panels shows
_LONGEST = 20  # characters of a name above its panels
_MOST = 99.0  # percentile at which the colours end: sinks draw a hundred times the even share


def figure(title: str, heatmaps: pd.DataFrame, images: Sequence[NDArray[Any]]) -> Figure:
    """Attention per area of each image, 1 where it is what even attention to it would give.

    Args:
        title: the figure's title.
        heatmaps: ``heatmaps.csv``; a column ``image`` tells which of several a row is about, a
            column ``run`` which of several runs it is of.
        images: ``[height, width, 3]`` each.
    """
    for column, value in (("run", ""), (IMAGE, 1)):
        heatmaps = heatmaps if column in heatmaps else heatmaps.assign(**{column: value})
    shown = sorted(heatmaps["layer"].unique())
    columns = min(len(shown), _COLUMNS)
    lines = -(-len(shown) // columns)  # of panels a block
    blocks = list(heatmaps[_BLOCK].drop_duplicates().itertuples(index=False, name=None))
    # Runs of one query and image stand below each other.
    asked = list(dict.fromkeys(block[1:] for block in blocks))
    blocks.sort(key=lambda block: asked.index(block[1:]))
    sizes = {block: images[block[-1] - 1].shape[:2] for block in blocks}
    across = (DOUBLE_WIDTH - 0.9) / _COLUMNS
    heights = [0.25 + across * height / width for height, width in sizes.values()]
    drawing = new_figure(DOUBLE_WIDTH, 0.4 + lines * sum(heights), title)
    grid = drawing.subplots(
        len(blocks) * lines,
        columns,
        squeeze=False,
        height_ratios=[height for height in heights for _ in range(lines)],
    )
    for axes in grid.flat:
        axes.set_axis_off()
        axes.set(xticks=[], yticks=[])
    maps: dict[tuple[Any, Any], NDArray[np.float64]] = {}
    for (*names, layer), rows in heatmaps.groupby([*_BLOCK, "layer"]):
        block = tuple(names)
        height, width = sizes[block]
        maps[block, layer] = attention_map(rows, width, height)
    values = np.concatenate([drawn[np.isfinite(drawn)] for drawn in maps.values()])
    scale = ScalarMappable(Normalize(0, max(1.0, float(np.percentile(values, _MOST)))), "viridis")
    for (block, layer), drawn in maps.items():
        run, query, number = block
        place = shown.index(layer)
        axes = grid[blocks.index(block) * lines + place // columns, place % columns]
        axes.imshow(over_picture(scale, drawn, images[number - 1]), interpolation="nearest")
        told = [shortened(str(name), _LONGEST) for name in (run, query) if name]
        told += [f"image {number}"] * (len(images) > 1)
        axes.set_title(", ".join([*told, f"layer {layer}"]), fontsize=6 if run else None)
    bar = drawing.colorbar(scale, ax=grid, shrink=0.8, extend="max", aspect=30)
    bar.set_label("attention per area (1: even)")
    return drawing


def attention_map(rows: pd.DataFrame, width: int, height: int) -> NDArray[np.float64]:
    """Attention per area on a canvas with the image's proportions, NaN where no token looks.

    Every token spreads its weight over its place; views of one place at several scales add up.
    1 is what each place would draw if attention were even over all places that tokens look at.

    Args:
        rows: of ``heatmaps.csv``, one layer and query.
        width: of the image, in pixels.
        height: of the image, in pixels.
    """
    shape = canvas_shape(width, height)
    canvas, seen = np.zeros(shape), np.zeros(shape, dtype=bool)
    total = float(rows["attention"].sum()) or 1.0
    weights = rows["attention"].to_numpy() / total
    for (left, top, right, bottom), weight in zip(on_canvas(rows, shape), weights, strict=True):
        area = (right - left) * (bottom - top)
        if area > 0:
            canvas[top:bottom, left:right] += weight / area
            seen[top:bottom, left:right] = True
    canvas[~seen] = np.nan
    even: float = seen.sum()
    return canvas * even
