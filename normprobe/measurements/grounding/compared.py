"""Runs of ``grounding`` side by side: what ranks them, and how they are shown."""

from math import nan

import numpy as np
import pandas as pd
from numpy.typing import NDArray

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
#: What the intervals need of the sample rows.
ROW_COLUMNS = ("sample_id", "image_hash", "left_out", "layer", "cosine_gap", "score_gap")


def figures(compare: pd.DataFrame) -> tuple[str, ...]:
    """The modules that draw ``compare.csv``."""
    del compare
    return ("compare_grounding",)


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
