"""95 % intervals of layers.csv, by a bootstrap over images."""

import numpy as np
import pandas as pd

from normprobe.schema import (
    OTHER_TOKEN_METRICS,
    RATIOS_TO_TEXT,
    SAMPLE_METRICS,
    TEXT,
    TOKEN_METRICS,
)
from normprobe.statistics.resampling import Resampled, with_intervals

_BY_LAYER = ["layer", "group", "hidden_size"]


def layer_intervals(table: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Add ``<column>_ci_low`` and ``_ci_high`` for every mean and ratio of layers.csv.

    Args:
        table: of ``layers_table(rows)``.
        rows: sample rows with a column ``image_hash``.

    Returns:
        The table with 95 % intervals; empty fields where there is one image alone.
    """
    resampled = Resampled(table, rows, _BY_LAYER)
    draws = {}
    for metric in (*TOKEN_METRICS, *OTHER_TOKEN_METRICS):
        draws[f"{metric}_mean"] = resampled.means(f"{metric}_mean", by_tokens=True)
        draws[f"{metric}_sample_mean"] = resampled.means(f"{metric}_mean", by_tokens=False)
    for metric in SAMPLE_METRICS:
        draws[f"{metric}_mean"] = resampled.means(metric, by_tokens=False)
    draws["rms_mean"] = draws["norm_mean"] / np.sqrt(table["hidden_size"].to_numpy())
    text = table[table["group"] == TEXT].drop_duplicates("layer")
    place_of_text = dict(zip(text["layer"], text.index, strict=True))
    beside = np.array([place_of_text.get(layer, -1) for layer in table["layer"]])
    for metric, column in RATIOS_TO_TEXT.items():
        means = draws[f"{metric}_mean"]
        with np.errstate(divide="ignore", invalid="ignore"):  # layer 0 turns nothing
            draws[column] = np.where(beside >= 0, means / means[:, beside], np.nan)
    return with_intervals(table, draws, resampled.units)
