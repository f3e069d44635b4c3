"""Runs of ``grounding`` side by side: what ranks them, and how they are shown."""

from dataclasses import replace
from math import nan

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from normprobe.extensions.pictures.grounding.shown import GAPS, beside_each_other
from normprobe.report.charts import by_series
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given
from normprobe.report.figures.style import drawable
from normprobe.report.ratio_words import Estimate
from normprobe.statistics.bootstrap import LINEAR, interval
from normprobe.statistics.resampling import Resampled
from normprobe.tidy import select

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


def drawings(_compare: pd.DataFrame) -> list[Drawing]:
    """The figures of ``compare.csv``."""
    return [Drawing("compare_grounding", ("compare",), draw_runs)]


def draw_runs(title: str, compare: pd.DataFrame, ax: Given = None) -> Figure:
    """Gaps by layer, a colour a run: before and after a norm behind the projector, for example."""
    compare = compare.assign(run=compare["run"].map(lambda run: drawable(str(run))))
    of_runs = [
        replace(panel, curves=by_series(compare, "run", panel.curves[0].quantity)) for panel in GAPS
    ]
    runs = [replace(curve, quantity="") for curve in reversed(of_runs[0].curves)]
    return beside_each_other(title, of_runs, compare, ax, legend=runs)


def measures(grounding: pd.DataFrame, rows: pd.DataFrame | None = None) -> dict[str, Estimate]:
    """The gaps of one run."""
    score = _over_layers(grounding, rows, "score_gap")
    weight = Estimate(*np.exp([score.value, score.low, score.high]).tolist())
    cosine = _over_layers(grounding, rows, "cosine_gap")
    return {"weight_ratio": weight, "score_gap": score, "cosine_gap": cosine}


def _over_layers(grounding: pd.DataFrame, rows: pd.DataFrame | None, gap: str) -> Estimate:
    """The mean over the layers that have a gap, with its 95 % interval where it has one."""
    known = select(grounding, gap)
    known = known[(known["layer"] > 0) & known["mean"].notna()]
    if known.empty:
        return Estimate(nan)
    value = float(known["mean"].mean())
    if rows is None or rows.empty:
        return Estimate(value)
    resampled = Resampled(known, rows[rows["left_out"] == ""], ["layer"])
    drawn: NDArray[np.float64] = resampled.means(gap, by_tokens=False)
    ends = interval(drawn.mean(axis=1, keepdims=True), resampled.units, LINEAR)
    return Estimate(value, *ends[:, 0].tolist())
