"""Runs of ``layers`` side by side: what ranks them, and how they are shown."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.measurements.layers.charts import run_charts
from normprobe.measurements.layers.ratios import ratio_after
from normprobe.report.page.blocks import curves, heading, note
from normprobe.report.page.markup import Markup
from normprobe.report.ratio_words import Estimate, with_ends
from normprobe.schema import TEXT, VISUAL
from normprobe.statistics.bootstrap import LINEAR, interval
from normprobe.statistics.resampling import Resampled

#: Header and column of each number of the ranking.
COLUMNS = {
    "input": "disparity_input",
    "middle": "disparity_middle",
    "last": "disparity_last",
    "inertia gap": "inertia_gap",
}
NOTES = (
    "input, middle, last: visual / text, ratio of geometric mean norms at the input,",
    "after layer ceil(N / 2) and after the last. inertia gap: text - visual angle,",
    "mean over layers (radians per layer). Ranked by |log ratio| at the input.",
)
#: What the intervals need of the sample rows.
ROW_COLUMNS = ("sample_id", "image_hash", "layer", "group", "tokens", "angle_mean", "angle_tokens")


def figures(compare: pd.DataFrame) -> tuple[str, ...]:
    """The modules that draw ``compare.csv``; with a column ``step`` the runs are one training."""
    if "step" in compare:
        return ("training", "small_multiples")
    return ("small_multiples", "overlay")


def section(compare: pd.DataFrame) -> list[Markup]:
    """What the page shows of ``compare.csv``."""
    return [
        heading("Through the decoder"),
        curves(run_charts(compare)),
        note("Means over tokens. Full lines: visual tokens; dashed: text tokens."),
    ]


def measures(layers: pd.DataFrame, rows: pd.DataFrame | None = None) -> dict[str, float]:
    """Disparity and inertia of one run, each with its 95 % interval where it has one."""
    last = int(layers["layer"].max())
    places = {"input": 0, "middle": -(-last // 2), "last": last}
    measured: dict[str, Estimate] = {
        f"disparity_{name}": ratio_after(layers, place) for name, place in places.items()
    }
    measured["inertia_gap"] = _inertia_gap(layers, rows)
    return with_ends(measured)


def _inertia_gap(layers: pd.DataFrame, rows: pd.DataFrame | None) -> Estimate:
    """Text minus visual angle, mean over the layers that have both."""
    places = (
        layers[["layer", "group"]]
        .assign(place=np.arange(len(layers)))
        .query("layer > 0")
        .pivot(index="layer", columns="group", values="place")
        .reindex(columns=[VISUAL, TEXT])
        .dropna()
        .astype(int)
    )

    def gaps(angles: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of each draw, ``[draws, rows of layers.csv]``."""
        by_layer = pd.DataFrame(angles[:, places[TEXT]] - angles[:, places[VISUAL]])
        return by_layer.mean(axis=1).to_numpy()

    (gap,) = gaps(layers[["angle_mean"]].to_numpy(np.float64).T)
    if rows is None or rows.empty:
        return Estimate(float(gap))
    resampled = Resampled(layers, rows, ["layer", "group"])
    drawn = gaps(resampled.means("angle_mean", by_tokens=True))
    return Estimate(float(gap), *interval(drawn[:, None], resampled.units, LINEAR)[:, 0].tolist())
