"""Trainings side by side: what ranks them, and how they are shown."""

from dataclasses import replace
from math import nan

import pandas as pd
from matplotlib.figure import Figure

from normprobe.extensions.training.shown import STEP, disparities
from normprobe.report.charts import Panel, by_series, draw_panels
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given
from normprobe.report.figures.style import drawable
from normprobe.report.ratio_words import Estimate, Ratio
from normprobe.schema import GEOMETRIC_RATIOS, VISUAL

#: Header and column of each number of the ranking.
COLUMNS = {"disparity at the end": "disparity_last_step", "at the start": "disparity_first_step"}
NOTES = (
    "Visual over text norm at the decoder input (geometric means), of the last measured",
    "step and of the first, each on the batch that it trained on.",
)
#: The first of them, in words.
RANKED = "visual / text norm at the end"
#: Sample rows are not needed.
ROW_COLUMNS = ("sample_id",)


def drawings(_compare: pd.DataFrame) -> list[Drawing]:
    """The figures of ``compare.csv``."""
    return [Drawing("compare_training", ("compare",), draw_runs)]


def draw_runs(title: str, compare: pd.DataFrame, ax: Given = None) -> Figure:
    """The norm ratio at the decoder input over steps, a colour a run."""
    compare = compare.assign(run=[drawable(str(run)) for run in compare["run"]])
    where = {"layer": 0, "group": VISUAL}
    runs = by_series(compare, "run", GEOMETRIC_RATIOS["norm"], where=where, across=STEP)
    panel = Panel("visual norm / text norm at the decoder input", runs)
    legend = [replace(curve, quantity="", where={}) for curve in reversed(runs)]
    return draw_panels(title, [panel], compare, ax, columns=1, height=2.0, legend=legend)


def measures(training: pd.DataFrame, _rows: pd.DataFrame | None = None) -> dict[str, Estimate]:
    """The norm ratio at the decoder input at both ends of one training."""
    found = disparities(training).tolist() or [nan]
    return {"disparity_last_step": Ratio(found[-1]), "disparity_first_step": Ratio(found[0])}
