"""95 % intervals of layers.csv, by a bootstrap over images."""

import numpy as np
import pandas as pd

from normprobe.schema import (
    GEOMETRIC_RATIOS,
    OTHER_TOKEN_METRICS,
    RATIOS_TO_TEXT,
    SAMPLE_METRICS,
    TEXT,
    TOKEN_METRICS,
    VISUAL,
)
from normprobe.statistics.resampling import Resampled, Together, with_intervals

_BY_LAYER = ["layer", "group", "hidden_size"]


def layer_intervals(table: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Add ``<column>_ci_low`` and ``_ci_high`` for every mean and ratio of layers.csv."""
    resampled = Resampled(table, rows, _BY_LAYER)
    drawn = {}
    for metric in (*TOKEN_METRICS, *OTHER_TOKEN_METRICS):
        drawn[f"{metric}_mean"] = resampled.means(f"{metric}_mean", by_tokens=True)
        drawn[f"{metric}_sample_mean"] = resampled.means(f"{metric}_mean", by_tokens=False)
        if f"{metric}_geometric_mean" in table:
            drawn[f"{metric}_geometric_mean"] = resampled.geometric_means(metric)
    for metric in SAMPLE_METRICS:
        drawn[f"{metric}_mean"] = resampled.means(metric, by_tokens=False)
    drawn["rms_mean"] = drawn["norm_mean"] / np.sqrt(table["hidden_size"].to_numpy())
    text = table[table["group"] == TEXT].drop_duplicates("layer")
    place_of_text = dict(zip(text["layer"], text.index, strict=True))
    beside = np.array([place_of_text.get(layer, -1) for layer in table["layer"]])
    for kind, ratios in (("mean", RATIOS_TO_TEXT), ("geometric_mean", GEOMETRIC_RATIOS)):
        for metric, column in ratios.items():
            means = drawn[f"{metric}_{kind}"]
            with np.errstate(divide="ignore", invalid="ignore"):  # layer 0 turns nothing
                drawn[column] = np.where(beside >= 0, means / means[:, beside], np.nan)
    behind = table["layer"] > 0  # what enters the decoder is told by itself
    together = [
        Together([column], (table["group"] == VISUAL) & behind)
        for column in GEOMETRIC_RATIOS.values()
    ]
    modalities = table["group"].isin([VISUAL, TEXT])
    together += [Together([f"{metric}_mean"], modalities) for metric in TOKEN_METRICS]
    return with_intervals(table, drawn, resampled.units, resampled.held, together)
