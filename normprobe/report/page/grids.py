"""Numbers as shades of cells, bare or over a picture, as the page's script draws them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Grid = dict[str, Any]


def grid_of(
    label: str,
    values: NDArray[np.float64],
    *,
    middle: float,
    end: float,
    log: bool = False,
) -> Grid:
    """One grid of cells.

    Args:
        label: what is drawn.
        values: ``[down, across]``; NaN leaves a cell bare.
        middle: the number without colour; larger ones are warm, smaller ones cool.
        end: the number of full colour.
        log: colours follow the logarithm.
    """
    return {
        "label": label,
        "values": [[_short(value) for value in row] for row in values],
        "middle": middle,
        "end": end,
        "log": log,
    }


def named(grid: Grid, words: tuple[str, str], rows: Sequence[Any], columns: Sequence[Any]) -> Grid:
    """A grid whose rows and columns have names."""
    return grid | {"words": list(words), "rows": list(rows), "columns": list(columns)}


def over_picture(grid: Grid, picture: int, x: NDArray[np.float64], y: NDArray[np.float64]) -> Grid:
    """A grid that lies over a picture."""
    edges = {name: [round(float(edge), 4) for edge in ends] for name, ends in (("x", x), ("y", y))}
    return grid | {"picture": picture} | edges


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None
