"""A line through numbers of layers: marked so that it is told apart, and none is lost."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normprobe.report.figures.style import GroupLook

_MARKS = 12  # about as many as a line has


def draw_line(
    axes: Axes, rows: pd.DataFrame, column: str, look: GroupLook, label: str, **more: Any
) -> None:
    """Draw a column over the layers.

    Args:
        axes: where to draw.
        rows: one a layer, in order; where the column is empty, the line is interrupted, and
            without a number there is none.
        column: what is drawn.
        look: colour, marker and line.
        label: in the legend.
        **more: for ``Axes.plot``.
    """
    if rows[column].isna().all():
        return  # an empty line lies at the corner of the figure, where the layout makes room for it
    axes.plot(
        rows["layer"],
        rows[column],
        label=label,
        **{"zorder": 3, **look._asdict(), **more},
        markevery=_marked(rows[column].to_numpy(float)),
    )


def _marked(values: "np.ndarray[Any, Any]") -> list[int]:
    """Some of the points, and each that has no neighbour: no line shows where it is."""
    known = np.isfinite(values)
    joined = np.append(False, known[:-1]) | np.append(known[1:], False)
    step = max(1, len(values) // _MARKS)
    places = np.flatnonzero(known).tolist()
    return [place for place in places if place % step == 0 or not joined[place]]
