"""Panels and their legend; a number over layers with its interval and its band."""

from collections.abc import Iterable, Sequence
from itertools import starmap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import TextPath
from numpy.typing import NDArray

from normprobe.errors import NormprobeError
from normprobe.report.figures.style import FONT, GroupLook, OwnFigure, new_figure
from normprobe.tidy import BAND, ends_of

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
        first = grid.flat[0]  # beside what it names itself
        named = first.get_legend_handles_labels()[0] if first.get_legend() else []
        first.legend(handles=[*named, *handles])
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


INTERVAL_WORDS = "95 % interval of each layer"
BAND_WORDS = "95 % band of all layers together"
_MARKS = 12  # about as many as a line has
_FILL: dict[str, Any] = {"alpha": 0.3, "label": f"_{INTERVAL_WORDS}"}  # in no legend by itself
_OUTLINE: dict[str, Any] = {"linestyle": (0, (1, 1.5)), "linewidth": 0.9, "marker": ""}


def draw_line(
    axes: Axes, rows: pd.DataFrame, estimate: str, look: GroupLook, label: str, **more: Any
) -> None:
    """Draw an estimate of a quantity over the layers."""
    if rows[estimate].isna().all():
        return  # an empty line lies at the corner of the figure, where the layout makes room for it
    axes.plot(
        rows["layer"],
        rows[estimate],
        label=label,
        **{"zorder": 3, **look._asdict(), **more},
        markevery=_marked(rows[estimate].to_numpy(float)),
    )


def draw_estimate(
    axes: Axes,
    rows: pd.DataFrame,
    estimate: str,
    look: GroupLook,
    label: str,
    *,
    markersize: float = 3,
    **more: Any,
) -> None:
    """Draw an estimate as a line, its intervals filled, its band as a dotted outline.

    Interval and band are drawn where the rows have them, and the axis holds ``in_sight``.
    """
    if estimate not in rows or rows[estimate].isna().all():
        return
    draw_line(axes, rows, estimate, look, label, markersize=markersize, **more)
    layers = rows["layer"].to_numpy()
    if len(ends := _ends(rows, ends_of(estimate))):
        axes.fill_between(layers, *ends, color=look.color, linewidth=0, **_FILL)
        if (alone := _alone(np.isfinite(ends[0]))).any():  # nothing to fill up to
            how = _FILL | {"colors": look.color, "linewidth": 3}
            axes.vlines(layers[alone], *ends[:, alone], **how)
    if len(ends := _band(rows, estimate)):
        _draw_outline(axes, layers, ends, look.color)
        held = in_sight(rows, estimate)
        axes.update_datalim([(0, held.min()), (0, held.max())], updatex=False)
        axes.autoscale_view(scalex=False)


def in_sight(rows: pd.DataFrame, estimate: str) -> NDArray[np.float64]:
    """The finite numbers of an estimate, and the ends of its intervals and band, for an axis.

    Of few images a band can be so wide that all else would lie flat: an axis follows it as far
    again as the line and its intervals reach. Beyond, it leaves the panel.
    """
    near: NDArray[np.float64] = np.append(rows[estimate], _ends(rows, ends_of(estimate)))
    near = near[np.isfinite(near)]
    far = _band(rows, estimate)
    far = far[np.isfinite(far)]
    if not near.size or not far.size:
        return near
    low, high = near.min(), near.max()
    least = max(2 * low - high, low * low / high) if low > 0 else 2 * low - high
    return np.append(near, far.clip(least, 2 * high - low))


def _draw_outline(axes: Axes, layers: NDArray[Any], ends: NDArray[np.float64], color: str) -> None:
    """Both ends of a band as one dotted line, which leaves the limits of the axis as they are."""
    heights = np.append(*np.pad(ends, ((0, 0), (0, 1)), constant_values=np.nan))
    alone = np.flatnonzero(_alone(np.isfinite(heights))).tolist()
    look = _OUTLINE | {"color": color, "marker": "_", "markevery": alone}
    line = Line2D(np.tile(np.append(layers, np.nan), 2), heights, **look, label=f"_{BAND_WORDS}")
    axes.add_artist(line)


def ends_drawn(panels: Iterable[Axes], across: Iterable[str] = ()) -> list[Artist]:
    """For a legend: what fills and dotted outlines are, as far as panels have them."""
    drawn = [(axes, artist) for axes in panels for artist in axes.get_children()]
    handles: list[Artist] = []
    if any(artist.get_label() == f"_{INTERVAL_WORDS}" for _, artist in drawn):
        words = INTERVAL_WORDS.replace("layer", " or ".join(sorted(across)) or "layer")
        handles.append(Patch(color="0.65", label=words))
    outlines = [(axes, artist) for axes, artist in drawn if artist.get_label() == f"_{BAND_WORDS}"]
    if outlines:
        label = BAND_WORDS + ", cut off" * any(starmap(_leaves, outlines))
        handles.append(Line2D([], [], color="0.3", label=label, **_OUTLINE))
    return handles


def _leaves(axes: Axes, outline: Artist) -> bool:
    """Whether a panel does not hold all of a line."""
    assert isinstance(outline, Line2D)
    heights = np.asarray(outline.get_ydata(), dtype=float)
    low, high = axes.get_ylim()
    return bool(((heights < low) | (heights > high)).any())


def _band(rows: pd.DataFrame, estimate: str) -> NDArray[np.float64]:
    """As ``_ends``; means alone have a band."""
    return _ends(rows, BAND) if estimate == "mean" else np.empty((0, 0))


def _ends(rows: pd.DataFrame, columns: tuple[str, str]) -> NDArray[np.float64]:
    """Low and high of each layer, ``[2, layers]``; nothing where the rows have none."""
    if not set(columns) <= set(rows.columns) or rows[[*columns]].isna().all(axis=None):
        return np.empty((0, 0))
    return rows[[*columns]].to_numpy(float).T


def _marked(values: NDArray[np.float64]) -> list[int]:
    """Some of the points, and each that has no neighbour: no line shows where it is."""
    known = np.isfinite(values)
    alone = _alone(known)
    step = max(1, len(values) // _MARKS)
    return [place for place in np.flatnonzero(known).tolist() if place % step == 0 or alone[place]]


def _alone(known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which places have no neighbour that is known."""
    alone: NDArray[np.bool_] = known.copy()
    alone[1:] &= ~known[:-1]
    alone[:-1] &= ~known[1:]
    return alone
