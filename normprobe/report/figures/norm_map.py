"""Numbers laid over a picture: the colour tells the number, its shade the picture."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray
from PIL import Image

from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given, legend_below, panels
from normprobe.report.figures.style import DOUBLE_WIDTH, GROUP_LOOKS, asks_for_log, name_log_ticks
from normprobe.report.readable import significant
from normprobe.schema import IMAGE, VISUAL

_CANVAS = 448  # pixels of the longer side


_SHADE = 0.5  # how much of a colour's brightness the picture takes


#: Where nothing is laid over the picture: no token looks there.
BARE = 0.8


def grey_patch() -> Patch:
    """What a legend says of it."""
    return Patch(color=str(BARE), label="no visual token looks there")


def canvas_shape(width: int, height: int) -> tuple[int, int]:
    """Height and width of a canvas with the proportions of a picture."""
    scale = _CANVAS / max(width, height)
    return max(1, round(height * scale)), max(1, round(width * scale))


def on_canvas(places: pd.DataFrame, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Where places lie, in pixels: ``[places, 4]``: left, top, right, bottom."""
    edges = places[["left", "top", "right", "bottom"]].to_numpy(float)
    inside = np.nan_to_num(edges, nan=0.0).clip(0.0, 1.0)
    pixels: NDArray[np.int64] = (inside * (*shape[::-1], *shape[::-1])).round().astype(int)
    return pixels


def over_picture(
    scale: ScalarMappable, drawn: NDArray[np.float64], picture: NDArray[Any]
) -> NDArray[np.float64]:
    """The picture in the colours of the numbers; in grey where there is none.

    Args:
        scale: from numbers to colours.
        drawn: ``[height, width]`` of the canvas, NaN where no token looks.
        picture: ``[height, width, 3]``, of any size.

    Returns:
        RGB ``[height, width, 3]`` of the canvas, 0 to 1.
    """
    size = drawn.shape[1], drawn.shape[0]
    grey = np.asarray(Image.fromarray(picture).convert("L").resize(size)) / 255
    colour = np.where(np.isfinite(drawn)[..., None], scale.to_rgba(drawn)[..., :3], BARE)
    shaded: NDArray[np.float64] = colour * (1 - _SHADE + _SHADE * grey[..., None])
    return shaded


_LABELS = {"norm": "L2 norm", "angle": "angle (rad)"}


_MOST = 8  # pictures


_NAME = 0.2  # inches for the name of a picture


_TALLEST = 1.5  # height of a line of panels over their width


def draw_maps(
    title: str, map: pd.DataFrame, images: Sequence[NDArray[Any]], ax: Given = None
) -> Figure:
    """Maps of the norm, and below them of the angle, where there are any.

    Args:
        title: the figure's title.
        map: ``map.csv``; of many pictures the first are drawn.
        images: ``[height, width, 3]`` each, in the order of the column ``image``.
        ax: axes to draw in, a row a quantity and picture, the picture itself before its layers or
            stages; None: a figure of its own.
    """
    pictures = [int(number) for number in sorted(map[IMAGE].unique())][:_MOST]
    shown = list(dict.fromkeys(map[column_of_places(map)]))
    quantities = [name for name in _LABELS if name in map and map[name].notna().any()]
    across = (DOUBLE_WIDTH - 1.1) / (len(shown) + 1)
    shapes = [images[number - 1].shape[:2] for number in pictures]
    heights = [_NAME + across * min(height / width, _TALLEST) for height, width in shapes]
    height = 0.6 + len(quantities) * (0.1 + sum(heights))
    shape = len(quantities) * len(pictures), len(shown) + 1
    ratios = heights * len(quantities)
    drawing, grid = panels(title, DOUBLE_WIDTH, height, shape, ax, height_ratios=ratios)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    drawn_of = map[map[IMAGE].isin(pictures)]
    for block, name in enumerate(quantities):
        rows = grid[block * len(pictures) :][: len(pictures)]
        scale = _draw_pictures(
            rows, drawn_of, name, {number: images[number - 1] for number in pictures}
        )
        bar = drawing.colorbar(scale, ax=rows, shrink=0.9, aspect=30)
        bar.set_label(_LABELS[name])
        if isinstance(scale.norm, LogNorm):
            name_log_ticks(bar.ax.yaxis, drawn_of[name])
    legend_below(drawing, grid, [grey_patch()])
    return drawing


def _draw_pictures(
    grid: NDArray[Any], table: pd.DataFrame, name: str, images: Mapping[int, NDArray[Any]]
) -> ScalarMappable:
    """A line a picture: the picture itself, then a panel a layer or stage.

    Args:
        grid: ``[pictures, 1 + layers or stages]`` of axes.
        table: ``map.csv``.
        name: of the number.
        images: by their number.
    """
    where = column_of_places(table)
    shown = list(dict.fromkeys(table[where]))
    scale = _scale(table.loc[np.isfinite(table[name]), name].to_numpy(float))
    for line, (number, picture) in zip(grid, images.items(), strict=True):
        of_picture = table[table[IMAGE] == number]
        line[0].imshow(picture)
        line[0].set_title(f"picture {number}")
        for place, axes in zip(shown, line[1:], strict=True):
            rows = of_picture[of_picture[where] == place]
            if rows[name].notna().any():
                drawn = token_map(rows, name, *picture.shape[1::-1])
                axes.imshow(over_picture(scale, drawn, picture))
    for place, column in zip(shown, grid.T[1:], strict=True):
        if any(axes.images for axes in column):
            column[0].set_title(name_of_place(where, place))
    return scale


def column_of_places(table: pd.DataFrame) -> str:
    """What the panels of ``map.csv`` are: layers or stages."""
    return "layer" if "layer" in table else "stage"


def token_map(rows: pd.DataFrame, name: str, width: int, height: int) -> NDArray[np.float64]:
    """The number of the token that lies at each pixel of a canvas, NaN where none lies.

    Of views at several scales the finest is seen: a tile lies over the thumbnail.
    """
    canvas = np.full(canvas_shape(width, height), np.nan)
    edges = on_canvas(rows, canvas.shape)
    areas = (edges[:, 2] - edges[:, 0]) * (edges[:, 3] - edges[:, 1])
    values = rows[name].to_numpy(float)
    for place in np.argsort(-areas, kind="stable"):
        left, top, right, bottom = edges[place]
        canvas[top:bottom, left:right] = values[place]
    return canvas


def name_of_place(where: str, place: object) -> str:
    """A layer or a stage in words."""
    return f"layer {place}" if where == "layer" else str(place).replace("_", " ")


def _scale(values: NDArray[np.float64]) -> ScalarMappable:
    """One scale from the smallest to the largest number, by logarithms where that is wide."""
    positive = values[values > 0]
    if asks_for_log(positive):
        return ScalarMappable(LogNorm(positive.min(), positive.max(), clip=True), "viridis")
    low, high = (values.min(), values.max()) if values.size else (0.0, 1.0)
    return ScalarMappable(Normalize(low, high), "viridis")


_SHOWN, _COLUMNS = 12, 6


_AROUND = 2  # a crop shows the place and twice its size to each side


def draw_loudest(
    title: str, map: pd.DataFrame, images: Sequence[NDArray[Any]], ax: Given = None
) -> Figure:
    """Crops around the places of the loudest tokens, in the first layer or stage of the maps.

    Args:
        title: the figure's title.
        map: ``map.csv``.
        images: ``[height, width, 3]`` each, in the order of the column ``image``.
        ax: axes to draw in, a multiple of six where there are more than six tokens; None: a figure
            of its own.
    """
    where = column_of_places(map)
    rows = map[map[where] == map[where].iloc[0]]
    rows = rows[np.isfinite(rows["norm"])]
    median = float(rows["norm"].median())
    loudest = rows.sort_values("norm", ascending=False, kind="stable").head(_SHOWN)
    lines = -(-max(len(loudest), 1) // _COLUMNS)
    place = name_of_place(where, map[where].iloc[0])
    heading = f"{title}\nloudest visual tokens, {place}: L2 norm, and how many times the median"
    columns = min(_COLUMNS, max(len(loudest), 1))
    drawing, grid = panels(heading, DOUBLE_WIDTH, 0.75 + 1.45 * lines, (lines, columns), ax)
    for axes in grid.flat[len(loudest) :]:
        axes.set_axis_off()
    for axes, (_, row) in zip(grid.flat, loudest.iterrows(), strict=False):
        _crop(axes, row, images[int(row[IMAGE]) - 1])
        norm = float(row["norm"])
        times = f", {significant(norm / median, 2)} x" if median > 0 else ""
        axes.set_title(f"{significant(norm)}{times}\npicture {int(row[IMAGE])}")
    frame = Patch(fill=False, edgecolor=GROUP_LOOKS[VISUAL].color, label="place of the token")
    legend_below(drawing, grid, [frame, Patch(color=str(BARE), label="outside the picture")])
    return drawing


def _crop(axes: Axes, row: pd.Series, picture: NDArray[Any]) -> None:
    """The place of a token in a frame, with what lies around it; grey beyond the picture."""
    axes.set(xticks=[], yticks=[], facecolor=str(BARE))
    axes.spines[:].set_visible(False)
    ((left, top, right, bottom),) = on_canvas(row.to_frame().T, picture.shape[:2])
    across, down = right - left, bottom - top
    if across < 1 or down < 1:
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect=1)
        axes.text(0.5, 0.5, "padding", ha="center", va="center")
        return
    axes.imshow(picture, extent=(0, picture.shape[1], picture.shape[0], 0))
    axes.set_xlim(left - _AROUND * across, right + _AROUND * across)
    axes.set_ylim(bottom + _AROUND * down, top - _AROUND * down)
    axes.set_aspect(across / down)
    color = GROUP_LOOKS[VISUAL].color
    frame = Rectangle((left, top), across, down, fill=False, edgecolor=color, linewidth=1.4)
    axes.add_patch(frame)


DRAWINGS = [
    Drawing("norm_map", ("map",), draw_maps, images=True),
    Drawing("loudest", ("map",), draw_loudest, images=True),
]
