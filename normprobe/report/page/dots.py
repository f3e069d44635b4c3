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
    """One picture."""
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
    """One mean."""
    ends = zip(("low", "high", "least", "most"), (*interval, *spread), strict=True)
    row = {"stage": stage, "name": name, "color": color, "hollow": hollow, "ratio": ratio}
    return row | {"value": _short(value)} | {end: _short(number) for end, number in ends}


def _short(value: Any) -> float | None:
    """Six digits: what a screen can show."""
    return None if value is None or value != value else float(f"{value:.6g}")
