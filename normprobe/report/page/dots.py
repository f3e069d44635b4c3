"""Means as dots on a logarithmic axis, as the page's script draws them."""

from collections.abc import Sequence
from typing import Any

Dots = dict[str, Any]


def dots_of(
    label: str,
    axis: str,
    rows: Sequence[dict[str, Any]],
    reference: tuple[str, float, str] | None = None,
) -> Dots:
    """One picture.

    Args:
        label: what it shows.
        axis: the quantity along the axis.
        rows: of ``dot``, those of a stage one behind the other.
        reference: name, value and colour of a line that the ratios are against; None: there is
            none.
    """
    line = None
    if reference is not None:
        line = dict(zip(("name", "value", "color"), reference, strict=True))
    return {"label": label, "axis": axis, "rows": list(rows), "reference": line}


def dot(
    *,
    stage: str,
    name: str,
    color: str,
    value: float,
    interval: tuple[Any, Any],
    spread: tuple[Any, Any],
    hollow: bool = False,
    ratio: str = "",
) -> dict[str, Any]:
    """One mean.

    Args:
        stage: what it stands under.
        name: of the row.
        color: of the dot.
        value: above zero.
        interval: the ends of its 95 % interval; NaN or None: not known.
        spread: the 5 and 95 % quantiles, likewise.
        hollow: the dot is a ring.
        ratio: to the reference, in words; empty: not told.
    """
    ends = zip(("low", "high", "least", "most"), (*interval, *spread), strict=True)
    row = {"stage": stage, "name": name, "color": color, "hollow": hollow, "ratio": ratio}
    return row | {"value": _short(value)} | {end: _short(number) for end, number in ends}


def _short(value: Any) -> float | None:
    """Six digits: what a screen can show."""
    return None if value is None or value != value else float(f"{value:.6g}")
