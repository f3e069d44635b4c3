"""Runs of ``layers`` side by side: what ranks them, and how they are shown."""

import pandas as pd

from normprobe.measurements.layers.charts import run_charts
from normprobe.report.page.blocks import curves, heading, note
from normprobe.report.page.markup import Markup
from normprobe.schema import TEXT, VISUAL

#: Header and column of each number of the ranking.
COLUMNS = {
    "input": "disparity_input",
    "middle": "disparity_middle",
    "last": "disparity_last",
    "inertia gap": "inertia_gap",
}
NOTES = (
    "input, middle, last: visual / text mean norm at the decoder input, after",
    "layer ceil(N / 2) and after the last. inertia gap: text - visual angle,",
    "mean over layers (radians per layer). Ranked by disparity at the input.",
)


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


def measures(layers: pd.DataFrame) -> dict[str, float]:
    """Disparity and inertia of one run.

    Args:
        layers: ``layers.csv``.

    Returns:
        ``disparity_input``, ``disparity_middle``, ``disparity_last``: visual / text mean norm at
        the decoder input, after layer ceil(N / 2) and after the last layer N.
        ``inertia_gap``: text minus visual angular velocity, mean over layers 1 to N of the mean
        over tokens, radians per layer. NaN where a modality is absent.
    """
    wide = {
        metric: layers[layers["group"].isin([VISUAL, TEXT])]
        .pivot(index="layer", columns="group", values=f"{metric}_mean")
        .reindex(columns=[VISUAL, TEXT])
        .astype(float)
        for metric in ("norm", "angle")
    }
    ratio = wide["norm"][VISUAL] / wide["norm"][TEXT]
    last = int(layers["layer"].max())
    gap = wide["angle"][TEXT] - wide["angle"][VISUAL]
    places = {"input": 0, "middle": -(-last // 2), "last": last}
    return {
        **{f"disparity_{name}": _of_layer(ratio, place) for name, place in places.items()},
        "inertia_gap": float(gap.mean()),
    }


def _of_layer(ratio: "pd.Series[float]", layer: int) -> float:
    return float(ratio[layer]) if layer in ratio.index else float("nan")
