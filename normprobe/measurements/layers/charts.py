"""Tables of ``layers`` as the charts of its section of the page."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import to_hex

from normprobe.measurements.layers.accounted import ONE_LAYER
from normprobe.measurements.layers.branches import BRANCH_WORDS
from normprobe.measurements.layers.figures.accounted import ANGLES, PART_LOOKS
from normprobe.measurements.layers.figures.branches import (
    BRANCH_LINES,
    BRANCH_PANELS,
    branch_lines,
)
from normprobe.measurements.layers.figures.by_layer import GROUPS, SPREAD
from normprobe.measurements.layers.massive import PANELS as MASSIVE_PANELS
from normprobe.measurements.layers.theory_panels import CROSSED, PANELS, Panel
from normprobe.report.charts import Chart, chart, series_of
from normprobe.report.figures.style import GROUP_LOOKS, SERIES_COLORS, GroupLook
from normprobe.schema import TEXT, VISUAL

#: What can be drawn of ``layers.csv``: metric, its words, whether zero belongs on the axis.
METRICS = (
    ("norm", "L2 norm of the hidden state", True),
    ("cosine", "cosine between layer input and output", False),
    ("angle", "angular velocity (radians per layer)", True),
    ("relative_update", "relative update |h - x| / |x|", True),
    ("update_norm", "L2 norm of the update", True),
    ("update_angle", "angle between update and layer input (radians)", True),
    ("attention_input_norm", "L2 norm of what attention reads", True),
    ("pooled_cosine", "cosine of the group's mean vectors", False),
    ("within_modal_cosine", "mean cosine over pairs within the group", False),
)

#: What the first screen shows, likewise.
_STORY = (
    ("norm", "Loudness: L2 norm", True),
    ("angle", "Turning: radians per layer", True),
)


def layer_charts(
    layers: pd.DataFrame, metrics: Sequence[tuple[str, str, bool]] = METRICS
) -> list[Chart]:
    """A chart for each metric of ``layers.csv``, a series for each token group."""
    charts = []
    for metric, label, zero in metrics:
        mean = f"{metric}_mean"
        if mean not in layers:
            continue
        spread = [f"{metric}_{end}" for end in SPREAD]
        series = [
            series_of(str(group), GROUP_LOOKS[group], rows, mean, spread)
            for group in reversed(GROUPS)
            if len(rows := layers[layers["group"] == group])
        ]
        charts.append(chart(label, series, zero))
    return [drawn for drawn in charts if drawn["series"]]


def loudness_and_turning(layers: pd.DataFrame) -> list[Chart]:
    """Norm and angle of visual and text tokens, as ``layer_charts`` gives them."""
    return layer_charts(layers[layers["group"].isin((VISUAL, TEXT))], _STORY)


def accounted_charts(accounted: pd.DataFrame) -> list[Chart]:
    """Charts of ``accounted.csv``, as ``layer_charts`` gives them."""
    rows = accounted[accounted["scope"] == ONE_LAYER]
    rows = rows.assign(layer=rows["layers"].astype(int))

    def line(name: str, look: GroupLook, column: str) -> dict[str, Any]:
        return series_of(name, look, rows, column)

    parts = [
        line(word, GroupLook(color, "o", "-"), f"log_{part}")
        for part, (word, color) in PART_LOOKS.items()
    ]
    angles = [line(word, look, column) for column, (word, look) in ANGLES.items()]
    return [
        chart("parts of log(text angle / visual angle)", parts, zero=True),
        chart("angular velocity (radians per layer)", angles, zero=True),
    ]


def branch_charts(branches: pd.DataFrame) -> list[Chart]:
    """Charts of ``branches.csv``, as ``layer_charts`` gives them: a series a branch and group."""
    charts = []
    for metric, label in BRANCH_PANELS.items():
        series = [
            series_of(
                f"{BRANCH_WORDS[branch]}, {group}",
                GROUP_LOOKS[group]._replace(linestyle=BRANCH_LINES[branch]),
                rows,
                f"{metric}_mean",
            )
            for branch, group, rows in branch_lines(branches)
        ]
        charts.append(chart(label, series, zero=True))
    return charts


def theory_charts(theory: pd.DataFrame) -> list[Chart]:
    """Charts of ``theory.csv``, as ``layer_charts`` gives them."""
    charts = []
    for panel in (*PANELS, Panel("mean cosine over (visual, text) pairs", CROSSED)):
        series = [
            series_of(line.name, line.look, theory, line.column)
            for line in reversed(panel.lines)
            if line.column in theory
        ]
        charts.append(chart(panel.title, series, zero=True))
    return [drawn for drawn in charts if drawn["series"]]


def massive_charts(massive: pd.DataFrame) -> list[Chart]:
    """Charts of ``massive.csv``, as ``layer_charts`` gives them."""
    charts = []
    for panel in MASSIVE_PANELS:
        series = [
            series_of(
                curve.name,
                curve.look,
                massive[massive["group"] == curve.group],
                curve.column,
            )
            for curve in reversed(panel.curves)
        ]
        charts.append(chart(panel.title, series, zero=True))
    return [drawn for drawn in charts if drawn["series"]]


def run_charts(compare: pd.DataFrame) -> list[Chart]:
    """Charts of the joined ``layers.csv`` of several runs: visual lines full, text lines dashed."""
    runs = list(dict.fromkeys(compare["run"]))
    if "step" in compare:
        colors = [to_hex(color) for color in colormaps["viridis"](np.linspace(0.9, 0, len(runs)))]
    else:
        colors = [SERIES_COLORS[place % len(SERIES_COLORS)] for place in range(len(runs))]
    charts = []
    for metric, label, zero in METRICS:
        mean = f"{metric}_mean"
        if mean not in compare:
            continue
        # The means alone: intervals of so many lines would lie over each other.
        means = compare[["run", "group", "layer", mean]]
        series = [
            series_of(f"{run}, {group}", GROUP_LOOKS[group], rows, mean) | {"color": color}
            for run, color in zip(runs, colors, strict=True)
            for group in (VISUAL, TEXT)
            if len(rows := means[(means["run"] == run) & (means["group"] == group)])
        ]
        charts.append(chart(label, series, zero))
    return [drawn for drawn in charts if drawn["series"]]
