"""95 % intervals of interface.csv, by a bootstrap over images."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.measurements.interface.references import (
    GEOMETRIC_REFERENCES,
    REFERENCES,
    place_of_reference,
)
from normprobe.schema import DECODER_INPUT, PROMPT_ROWS, TEXT
from normprobe.statistics.resampling import Resampled, with_intervals

_BY_STAGE = ["stage", "group", "hidden_size"]


def interface_intervals(table: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Add ``<column>_ci_low`` and ``_ci_high`` for the means and ratios of interface.csv.

    Rows of an embedding table are no sample: their norms have no interval, the ratios of the
    prompts' tokens to them have one.
    """
    resampled = Resampled(table, rows, _BY_STAGE)
    norms = resampled.means("norm_mean", by_tokens=True)
    draws = {"norm_sample_mean": resampled.means("norm_mean", by_tokens=False)}
    # The effective embedding of some models is that of the prompts' text.
    prompt = (table["stage"] == DECODER_INPUT) & (table["group"] == TEXT)
    if prompt.any():
        norms[:, table["group"] == PROMPT_ROWS] = norms[:, prompt]
    draws["norm_mean"] = norms
    draws["rms_mean"] = norms / np.sqrt(table["hidden_size"].to_numpy())
    # A row of an embedding table is in no image: what has an interval there are its ratios.
    held = np.where(resampled.held > 0, resampled.held, resampled.units)
    sampled: NDArray[np.bool_] = np.atleast_2d(np.isfinite(norms).any(axis=0))
    known = np.where(sampled, norms, table["norm_mean"].to_numpy())
    for column in REFERENCES:
        reference = place_of_reference(table, column)
        if reference is not None:
            with np.errstate(divide="ignore", invalid="ignore"):
                ratios = known / known[:, [reference]]
            draws[column] = np.where(sampled | sampled[:, [reference]], ratios, np.nan)
    means = resampled.geometric_means("norm")
    draws["norm_geometric_mean"] = means
    for column, arithmetic in GEOMETRIC_REFERENCES.items():
        reference = place_of_reference(table, arithmetic)
        if reference is not None:
            draws[column] = means / means[:, [reference]]
    return with_intervals(table, draws, resampled.units, held)
