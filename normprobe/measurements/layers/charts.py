"""Tables of ``layers`` as the charts of its section of the page."""

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import to_hex

from normprobe.measurements.layers.figures.by_layer import BAND, GROUPS
from normprobe.report.figures.style import GROUP_LOOKS, SERIES_COLORS, GroupLook
from normprobe.report.page.charts import Chart, chart, series_of
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


_BOTH, _OTHER = GroupLook("#262626", "o", "-"), GroupLook("#8c8c8c", "s", "--")


_VISUAL, _TEXT = GROUP_LOOKS[VISUAL], GROUP_LOOKS[TEXT]


#: What can be drawn of ``theory.csv``: words, then a name, a column and a look.
_THEORY = (
    (
        "cross-modal cosine (Eq. 15)",
        (
            ("measured", "cross_modal_cosine_mean", _BOTH),
            ("predicted", "predicted_cross_modal_cosine_mean", _OTHER),
        ),
    ),
    ("lag angle (radians, Eq. 17)", (("lag angle", "lag_angle_mean", _BOTH),)),
    (
        "visual / text (means over samples of their ratios)",
        (("norm", "norm_ratio_mean", _BOTH), ("update norm", "update_norm_ratio_mean", _OTHER)),
    ),
    (
        "angle between update and layer input (radians)",
        (
            ("visual", "update_angle_visual_mean", _VISUAL),
            ("text", "update_angle_text_mean", _TEXT),
        ),
    ),
    (
        "cosine between the turn and the other modality's states",
        (
            ("visual", "visual_turn_to_text_mean", _VISUAL),
            ("text", "text_turn_to_visual_mean", _TEXT),
        ),
    ),
    (
        "correlation of log angle and log norm over tokens (Eq. 13)",
        (
            ("visual", "norm_angle_correlation_visual", _VISUAL),
            ("text", "norm_angle_correlation_text", _TEXT),
            ("both", "norm_angle_correlation_both", _BOTH),
        ),
    ),
)


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
            series_of(str(group), GROUP_LOOKS[group], rows, f"{metric}_mean", band)
            for group in reversed(GROUPS)
            if len(rows := layers[layers["group"] == group])
        ]
        charts.append(chart(label, series, zero))
    return [drawn for drawn in charts if drawn["series"]]


def theory_charts(theory: pd.DataFrame) -> list[Chart]:
    """Charts of ``theory.csv``, as ``layer_charts`` gives them."""
    charts = []
    for label, lines in _THEORY:
        present = [line for line in lines if line[1] in theory]
        series = [series_of(name, look, theory, column) for name, column, look in present]
        charts.append(chart(label, series, zero=True))
    return [drawn for drawn in charts if drawn["series"]]


def run_charts(compare: pd.DataFrame) -> list[Chart]:
    """Charts of the joined ``layers.csv`` of several runs: visual lines full, text lines dashed.

    Args:
        compare: ``layers.csv`` of each run below each other, with a column ``run``; with ``step``
            the runs are one training, and the colours follow it.
    """
    runs = list(dict.fromkeys(compare["run"]))
    if "step" in compare:
        colors = [to_hex(color) for color in colormaps["viridis"](np.linspace(0.9, 0, len(runs)))]
    else:
        colors = [SERIES_COLORS[place % len(SERIES_COLORS)] for place in range(len(runs))]
    charts = []
    for metric, label, zero in METRICS:
        if f"{metric}_mean" not in compare:
            continue
        series = [
            series_of(f"{run}, {group}", GROUP_LOOKS[group], rows, f"{metric}_mean")
            | {"color": color}
            for run, color in zip(runs, colors, strict=True)
            for group in (VISUAL, TEXT)
            if len(rows := compare[(compare["run"] == run) & (compare["group"] == group)])
        ]
        charts.append(chart(label, series, zero))
    return [drawn for drawn in charts if drawn["series"]]
