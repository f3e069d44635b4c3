"""Tables by decoder layer as the series that a page's script draws."""

from typing import Any

import pandas as pd

from normprobe.report.plots.by_layer import BAND, GROUPS
from normprobe.report.plots.style import GROUP_LOOKS, asks_for_log
from normprobe.schema import TEXT, VISUAL

#: What can be drawn of ``layers.csv``: metric, its words, whether zero belongs on the axis.
METRICS = (
    ("norm", "L2 norm of the hidden state", True),
    ("cosine", "cosine between layer input and output", False),
    ("angle", "angular velocity (radians per layer)", True),
    ("relative_update", "relative update |h - x| / |x|", True),
    ("update_norm", "L2 norm of the update", True),
    ("update_angle", "angle between update and layer input (radians)", True),
    ("pooled_cosine", "cosine of the group's mean vectors", False),
)

#: What can be drawn of ``theory.csv``: words, then a name, a column and the group it looks like.
_THEORY = (
    (
        "cross-modal cosine",
        (
            ("measured", "cross_modal_cosine_mean", VISUAL),
            ("predicted (Eq. 15)", "predicted_cross_modal_cosine_mean", TEXT),
        ),
    ),
    ("lag angle (radians, Eq. 17)", (("lag angle", "lag_angle_mean", VISUAL),)),
    (
        "visual / text update norm",
        (("update norm ratio", "update_norm_ratio_mean", VISUAL),),
    ),
)

_DASHES = {"-": "", "--": "7 4", "-.": "8 3 2 3", ":": "2 3"}

Chart = dict[str, Any]


def layer_charts(layers: pd.DataFrame) -> list[Chart]:
    """A chart for each metric of ``layers.csv``, a series for each token group.

    Args:
        layers: the table.

    Returns:
        label, ``log`` (how it is first shown), ``zero`` and series: name, color, dash, x (layers),
        y (means over tokens), and low and high (5 and 95 % quantiles) where they are kept.
    """
    charts = []
    for metric, label, zero in METRICS:
        if f"{metric}_mean" not in layers:
            continue
        band = [f"{metric}_{end}" for end in BAND]
        series = [
            _series(str(group), str(group), rows, f"{metric}_mean", band)
            for group in reversed(GROUPS)
            if len(rows := layers[layers["group"] == group])
        ]
        charts.append(_chart(label, series, zero))
    return [chart for chart in charts if chart["series"]]


def theory_charts(theory: pd.DataFrame) -> list[Chart]:
    """Charts of ``theory.csv``, as ``layer_charts`` gives them."""
    charts = []
    for label, lines in _THEORY:
        present = [line for line in lines if line[1] in theory]
        series = [_series(name, group, theory, column) for name, column, group in present]
        charts.append(_chart(label, series, zero=True))
    return [chart for chart in charts if chart["series"]]


def _chart(label: str, series: list[dict[str, Any]], zero: bool) -> Chart:
    drawn = [line for line in series if any(value is not None for value in line["y"])]
    values = [value for line in drawn for value in line["y"] if value is not None]
    log = zero and min(values, default=0) > 0 and asks_for_log(values)
    return {"label": label, "log": log, "zero": zero, "series": drawn}


def _series(
    name: str, group: str, rows: pd.DataFrame, column: str, band: list[str] | None = None
) -> dict[str, Any]:
    rows, look = rows.sort_values("layer"), GROUP_LOOKS[group]
    series = {
        "name": name,
        "color": look.color,
        "dash": _DASHES[look.linestyle],
        "x": [int(layer) for layer in rows["layer"]],
        "y": _numbers(rows[column]),
    }
    if band and set(band) <= set(rows.columns):
        series |= {"low": _numbers(rows[band[0]]), "high": _numbers(rows[band[1]])}
    return series


def _numbers(column: "pd.Series[Any]") -> list[float | None]:
    """Finite numbers with six digits, None for the rest: what a screen can show."""
    values = pd.to_numeric(column, errors="coerce")
    return [float(f"{v:.6g}") if abs(v) < float("inf") else None for v in values]
