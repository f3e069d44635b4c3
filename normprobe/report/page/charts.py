"""A table by decoder layer as the series that the page's script draws."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from normprobe.report.figures.lines import BAND, INTERVAL
from normprobe.report.figures.style import GroupLook, asks_for_log

_DASHES = {"-": "", "--": "7 4", "-.": "8 3 2 3", ":": "2 3"}
Chart = dict[str, Any]


def chart(label: str, series: list[dict[str, Any]], zero: bool) -> Chart:
    """One chart."""
    drawn = [line for line in series if any(value is not None for value in line["y"])]
    values = [value for line in drawn for value in line["y"] if value is not None]
    log = zero and min(values, default=0) > 0 and asks_for_log(values)
    return {"label": label, "log": log, "zero": zero, "series": drawn}


def series_of(
    name: str,
    look: GroupLook,
    rows: pd.DataFrame,
    column: str,
    spread: Sequence[str] = (),
) -> dict[str, Any]:
    """One line of a chart."""
    rows = rows.sort_values("layer")
    series = {
        "name": name,
        "color": look.color,
        "dash": _DASHES[look.linestyle],
        "x": [int(layer) for layer in rows["layer"]],
        "y": _numbers(rows[column]),
    }
    around = {
        "low": column + INTERVAL[0],
        "high": column + INTERVAL[1],
        "band_low": column + BAND[0],
        "band_high": column + BAND[1],
        **dict(zip(("least", "most"), spread, strict=False)),
    }
    series |= {name: _numbers(rows[end]) for name, end in around.items() if end in rows}
    return series


def _numbers(column: "pd.Series[Any]") -> list[float | None]:
    """Finite numbers with six digits, None for the rest: what a screen can show."""
    values = pd.to_numeric(column, errors="coerce")
    return [float(f"{v:.6g}") if abs(v) < float("inf") else None for v in values]
