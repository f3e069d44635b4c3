"""Runs of ``grounding`` side by side: what ranks them, and how they are shown."""

from dataclasses import replace
from math import nan

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from normprobe.measurements.grounding.figures import GAPS, beside_each_other
from normprobe.report.charts import by_series
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given
from normprobe.report.figures.style import drawable
from normprobe.report.ratio_words import Estimate, with_ends
from normprobe.statistics.bootstrap import LINEAR, interval
from normprobe.statistics.resampling import Resampled

#: Header and column of each number of the ranking.
COLUMNS = {
    "x weight": "weight_ratio",
    "score gap": "score_gap",
    "cosine gap": "cosine_gap",
}
NOTES = (
    "score gap, cosine gap: inside the box - outside, mean over layers 1 to N.",
    "x weight: e^(score gap), by how much a visual token inside outweighs one outside",
    "in the softmax (geometric means). Ranked by |score gap|.",
)
#: The first of them, in words.
RANKED = "weight inside the box / outside"
#: What the intervals need of the sample rows.
ROW_COLUMNS = ("sample_id", "image_hash", "left_out", "layer", "cosine_gap", "score_gap")


def drawings(compare: pd.DataFrame) -> list[Drawing]:
    """The figures of ``compare.csv``."""
    del compare
    return [Drawing("compare_grounding", ("compare",), draw_runs)]


def draw_runs(title: str, compare: pd.DataFrame, ax: Given = None) -> Figure:
    """Gaps by layer, a colour a run: before and after a norm behind the projector, for example."""
    compare = compare.assign(run=compare["run"].map(lambda run: drawable(str(run))))
    of_runs = [
        replace(panel, curves=by_series(compare, "run", panel.curves[0].column)) for panel in GAPS
    ]
    runs = [replace(curve, column="") for curve in reversed(of_runs[0].curves)]
    return beside_each_other(title, of_runs, compare, ax, legend=runs)


def measures(grounding: pd.DataFrame, rows: pd.DataFrame | None = None) -> dict[str, float]:
    """The gaps of one run, each with its 95 % interval where it has one."""
    score = _over_layers(grounding, rows, "score_gap")
    weight = Estimate(*np.exp([score.value, score.low, score.high]).tolist())
    cosine = _over_layers(grounding, rows, "cosine_gap")
    return with_ends({"weight_ratio": weight, "score_gap": score, "cosine_gap": cosine})


def _over_layers(grounding: pd.DataFrame, rows: pd.DataFrame | None, column: str) -> Estimate:
    """The mean over the layers that have a gap."""
    known = (grounding["layer"].gt(0) & grounding[column].notna()).to_numpy()
    if not known.any():
        return Estimate(nan)
    value = float(grounding[column][known].mean())
    if rows is None or rows.empty:
        return Estimate(value)
    resampled = Resampled(grounding, rows[rows["left_out"] == ""], ["layer"])
    drawn: NDArray[np.float64] = resampled.means(column, by_tokens=False)[:, known]
    ends = interval(drawn.mean(axis=1, keepdims=True), resampled.units, LINEAR)
    return Estimate(value, *ends[:, 0].tolist())
