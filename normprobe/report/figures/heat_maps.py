"""Attention laid over pictures: rows of panels a query and run, a panel a layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

from normprobe.report.figures.lines import Given, legend_below, panels
from normprobe.report.figures.norm_map import canvas_shape, grey_patch, on_canvas, over_picture
from normprobe.report.figures.style import DOUBLE_WIDTH, shortened, wrapped
from normprobe.schema import IMAGE

_COLUMNS = 4
_WIDEST = 2.3  # inches of a panel
_NARROWEST = 3.3  # inches of the figure
_NAME = 0.25  # inches for the name of a panel
_LINE = 0.13  # inches for each further line of a name or of the title
_FRAME = 0.95  # inches for title and colour bar
_BLOCK = ["run", "query", IMAGE]  # what a row of panels shows
_LONGEST = 20  # characters of a name above its panels
_BOX: dict[str, Any] = {"fill": False, "edgecolor": "#D55E00", "linewidth": 1.4, "linestyle": "--"}
_MOST = 99.0  # percentile at which the colours end: sinks draw a hundred times the even share


def draw_heatmaps(
    title: str,
    heatmaps: pd.DataFrame,
    images: Sequence[NDArray[Any]],
    options: Mapping[str, Any],
    ax: Given = None,
) -> Figure:
    """Attention per area of each image, 1 where it is what even attention to it would give.

    Args:
        title: the figure's title.
        heatmaps: ``heatmaps.csv``; a column ``image`` tells which of several a row is about, a
            column ``run`` which of several runs it is of.
        images: ``[height, width, 3]`` each.
        options: of the run; its ``box``, in pixels of the image, is drawn.
        ax: axes to draw in, as many as there are maps; None: a figure of its own.
    """
    for column, value in (("run", ""), (IMAGE, 1)):
        heatmaps = heatmaps if column in heatmaps else heatmaps.assign(**{column: value})
    shown = _shared_layers(heatmaps)
    blocks = list(heatmaps[_BLOCK].drop_duplicates().itertuples(index=False, name=None))
    # Runs of one query and image stand below each other.
    asked = list(dict.fromkeys(block[1:] for block in blocks))
    blocks.sort(key=lambda block: asked.index(block[1:]))
    compared = bool(heatmaps["run"].any())
    columns = _columns(len(shown), len(blocks), compared=compared)
    places = [(block, layer) for block in blocks for layer in shown]
    pictures = [images[block[-1] - 1] for block, _ in places]
    drawing, grid = _grid(title, pictures, columns, ax, above=_NAME + _LINE * compared)
    maps: dict[tuple[Any, Any], NDArray[np.float64]] = {}
    for (run, query, number, layer), rows in heatmaps[heatmaps["layer"].isin(shown)].groupby(
        [*_BLOCK, "layer"]
    ):
        height, width = images[int(str(number)) - 1].shape[:2]
        maps[(run, query, number), layer] = attention_map(rows, width, height)
    values = np.concatenate([drawn[np.isfinite(drawn)] for drawn in maps.values()])
    scale = ScalarMappable(Normalize(0, max(1.0, float(np.percentile(values, _MOST)))), "viridis")
    for axes, place in zip(grid.flat, places, strict=False):
        if place not in maps:
            continue
        (run, query, number), layer = place
        height, width = images[number - 1].shape[:2]
        laid = over_picture(scale, maps[place], images[number - 1])
        axes.imshow(laid, interpolation="nearest", extent=(0, width, height, 0))
        if options.get("box"):
            left, top, right, bottom = options["box"]
            axes.add_patch(Rectangle((left, top), right - left, bottom - top, **_BOX))
        named = ", ".join(shortened(str(name), _LONGEST) for name in (run, query) if name)
        told = f"picture {number}, layer {layer}" if len(images) > 1 else f"layer {layer}"
        between = "\n" if compared else ", "  # names of runs have a line of their own
        axes.set_title(f"{named}{between}{told}", fontsize=6 if compared else None)
    bar = drawing.colorbar(
        scale, ax=list(grid.flat), location="bottom", shrink=0.5, extend="max", aspect=40
    )
    bar.set_label("attention per area (1: even)")
    handles = [grey_patch()] if any(np.isnan(drawn).any() for drawn in maps.values()) else []
    handles += [Patch(**_BOX, label="target box")] if options.get("box") else []
    legend_below(drawing, grid, handles, room=0)
    return drawing


def _shared_layers(heatmaps: pd.DataFrame) -> list[int]:
    """The layers that every run has maps of; where there are none, all."""
    layers = [set(rows["layer"]) for _, rows in heatmaps.groupby("run")]
    return sorted(set.intersection(*layers) or set.union(*layers))


def _columns(layers: int, blocks: int, *, compared: bool) -> int:
    """Columns of panels: the layers of a block in one row, or in rows as full as can be.

    Blocks of one layer stand in one row, those of compared runs below each other.
    """
    if layers == 1 and not compared:
        return min(blocks, _COLUMNS)
    return layers if layers <= _COLUMNS else -(-layers // -(-layers // _COLUMNS))


def _grid(
    title: str, pictures: Sequence[NDArray[Any]], columns: int, ax: Given, *, above: float
) -> tuple[Figure, NDArray[Any]]:
    """A panel a picture, in rows that have its proportions."""
    rows = -(-len(pictures) // columns)
    across = min(_WIDEST, DOUBLE_WIDTH / columns)
    tall = [picture.shape[0] / picture.shape[1] for picture in pictures]
    heights = [above + across * max(tall[row * columns :][:columns]) for row in range(rows)]
    width = max(_NARROWEST, across * columns)
    heading = wrapped(title, width)
    height = _FRAME + _LINE * heading.count("\n") + sum(heights)
    drawing, grid = panels(heading, width, height, (rows, columns), ax, height_ratios=heights)
    for axes in grid.flat:
        axes.set_axis_off()
        axes.set(xticks=[], yticks=[])
    return drawing, grid


def attention_map(rows: pd.DataFrame, width: int, height: int) -> NDArray[np.float64]:
    """Attention per area on a canvas with the image's proportions, NaN where no token looks.

    Every token spreads its weight over its place; views of one place at several scales add up.
    1 is what each place would draw if attention were even over all places that tokens look at.
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
