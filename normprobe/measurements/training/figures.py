"""What is drawn of a training: the norm ratio by layer, and gradients by part, over its steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from normprobe.report.charts import Chart, chart, series_of
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given, draw_line, panels
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    GroupLook,
    asks_for_log,
    series_look,
    use_log,
)
from normprobe.runs.run_folder import RunStore
from normprobe.schema import VISUAL

_HEIGHT = 2.6  # inches


@dataclass(frozen=True)
class StepCurve:
    """A number over the steps of a training; ``layer`` is its x, as of any curve."""

    name: str
    look: GroupLook
    rows: pd.DataFrame
    column: str


def drawings(run: RunStore) -> list[Drawing]:
    """The figure of a run of ``training``."""
    del run
    return [Drawing("training", ("training", "gradients", "alarms"), draw_steps)]


def step_panels(training: pd.DataFrame, gradients: pd.DataFrame) -> dict[str, list[StepCurve]]:
    """What is drawn, by title."""
    depth = int(training["layer"].max())
    chosen = dict.fromkeys((0, (depth + 1) // 2, depth))
    visual = training[training["group"] == VISUAL]
    ratios, parts = [], []
    for place, layer in enumerate(chosen):
        name = f"after layer {layer}" if layer else "decoder input"
        rows = visual[visual["layer"] == layer]
        ratios.append(
            StepCurve(name, series_look(place), _over_steps(rows), "norm_geometric_ratio_to_text")
        )
    for place, part in enumerate(dict.fromkeys(gradients["part"])):
        rows = _over_steps(gradients[gradients["part"] == part])
        parts.append(
            StepCurve(str(part).replace("_", " "), series_look(place), rows, "gradient_norm")
        )
    return {"visual norm / text norm": ratios, "gradient norm": parts}


def step_charts(training: pd.DataFrame, gradients: pd.DataFrame) -> list[Chart]:
    """The same as the page draws it."""
    made = []
    for title, curves in step_panels(training, gradients).items():
        series = [series_of(c.name, c.look, c.rows, c.column) for c in curves if len(c.rows)]
        made.append(chart(title, series, zero=True) | {"across": "training step"})
    return [drawn for drawn in made if drawn["series"]]


def draw_steps(
    title: str,
    training: pd.DataFrame,
    gradients: pd.DataFrame,
    alarms: pd.DataFrame,
    ax: Given = None,
) -> Figure:
    """Norm ratio and gradients over steps; a vertical line where an alarm was raised."""
    drawing, grid = panels(title, DOUBLE_WIDTH, _HEIGHT, (1, 2), ax)
    for axes, (name, curves) in zip(
        grid.flat, step_panels(training, gradients).items(), strict=True
    ):
        axes.set_title(name, loc="left")
        axes.set_xlabel("training step")
        for curve in curves:
            draw_line(axes, curve.rows, curve.column, curve.look, curve.name, markersize=3)
        values = _values(curves)
        if values.size and values.min() > 0 and asks_for_log(values):
            use_log(axes, "y", values)
        elif values.size:
            axes.set_ylim(bottom=0)
        for place, step in enumerate(sorted(set(alarms["training_step"]))):
            label = "_" if place else "alarm"
            axes.axvline(step, color="0.4", linewidth=0.9, linestyle=":", label=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="best", fontsize=6.5)
    return drawing


def _over_steps(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(layer=rows["training_step"])


def _values(curves: Sequence[StepCurve]) -> NDArray[np.float64]:
    held = [np.empty(0), *(curve.rows[curve.column].to_numpy(float) for curve in curves)]
    values: NDArray[np.float64] = np.concatenate(held)
    return values[np.isfinite(values)]
