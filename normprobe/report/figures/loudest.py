"""The loudest visual tokens of the mapped pictures, each with what it looks at."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

from normprobe.report.figures.lines import Given, legend_below, panels
from normprobe.report.figures.norm_map import BARE, column_of_places, name_of_place, on_canvas
from normprobe.report.figures.style import DOUBLE_WIDTH, GROUP_LOOKS
from normprobe.report.readable import significant
from normprobe.schema import IMAGE, VISUAL

TABLES = ("map",)
IMAGES = True

_SHOWN, _COLUMNS = 12, 6
_AROUND = 2  # a crop shows the place and twice its size to each side


def figure(
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
