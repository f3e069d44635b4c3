"""What is drawn of a training: the norm ratio by layer, and gradients by part, over its steps."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from normprobe.report.charts import Curve, Panel, by_series, draw_panels
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given
from normprobe.report.figures.style import series_look
from normprobe.runs.run_folder import RunStore
from normprobe.schema import GEOMETRIC_RATIOS, VISUAL

STEP = "training_step"


def drawings(run: RunStore) -> list[Drawing]:
    """The figure of a run of ``training``."""
    del run
    return [Drawing("training", ("training", "gradients", "alarms"), draw_steps)]


def step_panels(
    training: pd.DataFrame, gradients: pd.DataFrame
) -> tuple[list[Panel], pd.DataFrame]:
    """What is drawn, and the table of it."""
    gradients = gradients.assign(part=gradients["part"].astype(str).str.replace("_", " "))
    depth = int(training["layer"].max())
    ratios = [
        Curve(
            f"after layer {layer}" if layer else "decoder input",
            GEOMETRIC_RATIOS["norm"],
            series_look(place),
            {"layer": layer, "group": VISUAL},
            across=STEP,
        )
        for place, layer in enumerate(dict.fromkeys((0, (depth + 1) // 2, depth)))
    ]
    parts = by_series(gradients, "part", "gradient_norm", dashed=True, across=STEP)
    drawn = [Panel("visual norm / text norm", ratios[::-1])]
    drawn += [Panel("gradient norm", parts)] * bool(parts)
    return drawn, pd.concat([training, gradients])


def draw_steps(
    title: str,
    training: pd.DataFrame,
    gradients: pd.DataFrame,
    alarms: pd.DataFrame,
    ax: Given = None,
) -> Figure:
    """Norm ratio and gradients over steps; a vertical line where an alarm was raised."""
    declared, table = step_panels(training, gradients)
    drawing = draw_panels(title, declared, table, ax, columns=len(declared), height=2.0)
    for axes in drawing.axes if ax is None else np.ravel(np.asarray(ax, dtype=object)):
        for place, step in enumerate(sorted(set(alarms[STEP]))):
            label = "_" if place else "alarm"
            axes.axvline(step, color="0.4", linewidth=0.9, linestyle=":", label=label)
        if axes.get_lines():
            axes.legend(loc="best", fontsize=6.5, reverse=True)
    return drawing
