"""A table by decoder layer as the series that the page's script draws."""

from typing import Any

import pandas as pd

from normprobe.report.figures.style import GroupLook, asks_for_log

_DASHES = {"-": "", "--": "7 4", "-.": "8 3 2 3", ":": "2 3"}


Chart = dict[str, Any]


def chart(label: str, series: list[dict[str, Any]], zero: bool) -> Chart:
    """One chart.

    Args:
        label: what is drawn.
        series: of ``series_of``; those without a number are left out.
        zero: zero belongs on the axis.

    Returns:
        label, ``log`` (how it is first shown), ``zero`` and ``series``.
    """
    drawn = [line for line in series if any(value is not None for value in line["y"])]
    values = [value for line in drawn for value in line["y"] if value is not None]
    log = zero and min(values, default=0) > 0 and asks_for_log(values)
    return {"label": label, "log": log, "zero": zero, "series": drawn}


def series_of(
    name: str,
    look: GroupLook,
    rows: pd.DataFrame,
    column: str,
    interval: list[str] | None = None,
    spread: list[str] | None = None,
) -> dict[str, Any]:
    """One line of a chart.

    Args:
        name: of the line.
        look: its colour and dashes.
        rows: one a layer.
        column: what is drawn.
        interval: the columns of the ends of its 95 % interval, drawn where they are kept.
        spread: those of the 5 and 95 % quantiles of tokens, likewise.
    """
    rows = rows.sort_values("layer")
    series = {
        "name": name,
        "color": look.color,
        "dash": _DASHES[look.linestyle],
        "x": [int(layer) for layer in rows["layer"]],
        "y": _numbers(rows[column]),
    }
    for ends, names in ((interval, ("low", "high")), (spread, ("least", "most"))):
        if ends and set(ends) <= set(rows.columns):
            series |= {name: _numbers(rows[end]) for name, end in zip(names, ends, strict=True)}
    return series


def _numbers(column: "pd.Series[Any]") -> list[float | None]:
    """Finite numbers with six digits, None for the rest: what a screen can show."""
    values = pd.to_numeric(column, errors="coerce")
    return [float(f"{v:.6g}") if abs(v) < float("inf") else None for v in values]
