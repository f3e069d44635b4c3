"""Trainings side by side: what ranks them, and how they are shown."""

from math import nan

import pandas as pd
from matplotlib.figure import Figure

from normprobe.measurements.training.words import disparities
from normprobe.report.charts import by_series
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given, draw_line, entries, legend_below, panels
from normprobe.report.figures.style import DOUBLE_WIDTH, drawable
from normprobe.schema import VISUAL

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


def drawings(compare: pd.DataFrame) -> list[Drawing]:
    """The figures of ``compare.csv``."""
    del compare
    return [Drawing("compare_training", ("compare",), draw_runs)]


def draw_runs(title: str, compare: pd.DataFrame, ax: Given = None) -> Figure:
    """The norm ratio at the decoder input over steps, a colour a run."""
    rows = compare.assign(
        run=compare["run"].map(lambda run: drawable(str(run))), at=compare["layer"]
    )
    rows = rows[(rows["at"] == 0) & (rows["group"] == VISUAL)]
    rows = rows.assign(layer=rows["training_step"])
    drawing, grid = panels(title, DOUBLE_WIDTH, 2.6, ax=ax)
    axes = grid[0, 0]
    for curve in by_series(rows, "run", "norm_geometric_ratio_to_text"):
        draw_line(axes, curve.rows(rows), curve.column, curve.look, curve.name)
    axes.set_title("visual norm / text norm at the decoder input", loc="left")
    axes.set_xlabel("training step")
    axes.set_ylim(bottom=0)
    legend_below(drawing, grid, list(reversed(entries(grid).values())))
    return drawing


def measures(training: pd.DataFrame, rows: pd.DataFrame | None = None) -> dict[str, float]:
    """The norm ratio at the decoder input at both ends of one training."""
    del rows
    found = disparities(training)
    first, last = (found.iloc[0], found.iloc[-1]) if len(found) else (nan, nan)
    return {"disparity_last_step": float(last), "disparity_first_step": float(first)}
