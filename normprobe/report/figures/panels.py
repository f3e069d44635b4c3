"""Panels to draw in, and one legend for them: in a figure of their own, or in a caller's."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from numpy.typing import NDArray

from normprobe.errors import NormprobeError
from normprobe.report.figures.glyphs import FONT
from normprobe.report.figures.style import OwnFigure, new_figure

#: A caller's axes, one or as many as a figure has panels; None: a figure of its own.
Given = Axes | Sequence[Axes] | NDArray[Any] | None

_INCH = 72  # points
_LEGEND_LINE = 0.17  # inches


def panels(
    title: str,
    width: float,
    height: float,
    shape: tuple[int, int] = (1, 1),
    ax: Given = None,
    **how: Any,
) -> tuple[Figure, NDArray[Any]]:
    """Where a figure is drawn.

    Returns:
        The figure, and its axes in that shape.
    """
    if ax is None:
        drawing = new_figure(width, height, title)
        return drawing, drawing.subplots(*shape, squeeze=False, **how)
    given = np.asarray(ax, dtype=object).ravel()
    rows, columns = shape
    if given.size != rows * columns:
        raise NormprobeError(
            f"ax: the figure has {rows * columns} panels; received axes for {given.size}",
            f"figure, ax = plt.subplots({rows}, {columns})",
        )
    return given[0].figure, given.reshape(shape)


def entries(grid: NDArray[Any]) -> dict[str, Artist]:
    """What the panels name for a legend, each once."""
    found: dict[str, Artist] = {}
    for axes in grid.flat:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    return found


def legend_below(
    drawing: Figure, grid: NDArray[Any], handles: Sequence[Artist], room: int = 1
) -> None:
    """One legend of all panels, in as few lines as fit; in a caller's figure in the first panel."""
    if not handles:
        return
    if not isinstance(drawing, OwnFigure):
        grid.flat[0].legend(handles=handles)
        return
    columns = _columns([str(handle.get_label()) for handle in handles], drawing.get_figwidth())
    lines = -(-len(handles) // columns)
    drawing.set_figheight(drawing.get_figheight() + _LEGEND_LINE * (lines - room))
    drawing.legend(handles=handles, loc="outside lower center", ncols=columns)


def _columns(labels: Sequence[str], width: float) -> int:
    """The most columns of a legend that a figure has room for; sizes in inches."""
    size = rcParams["font.size"]
    font = FontProperties(family=FONT)
    wide = [TextPath((0, 0), label or " ", size=size, prop=font).get_extents() for label in labels]
    handle = rcParams["legend.handlelength"] + rcParams["legend.handletextpad"]
    between = rcParams["legend.columnspacing"]
    for columns in range(len(labels), 1, -1):
        parts = np.array_split([box.width for box in wide], columns)
        texts = sum(part.max() for part in parts)
        if (texts + size * (columns * handle + (columns + 1) * between)) / _INCH <= width:
            return columns
    return 1
