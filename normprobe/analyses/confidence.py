"""Confidence intervals of the tables, by a bootstrap over images.

Questions about one picture share its visual tokens: they are drawn together, as one unit. A sample
without an image is a unit of its own.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.analyses.interface import REFERENCES, reference_rows
from normprobe.probes.bootstrap import draw_weights, percentile_interval, ratio_draws
from normprobe.schema import (
    DECODER_INPUT,
    INJECTION,
    PROMPT_ROWS,
    TEXT,
    TOKEN_METRICS,
)

_BY_LAYER = ["layer", "group", "hidden_size"]
_BY_STAGE = ["stage", "group", "hidden_size"]


def layer_intervals(table: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Add ``<column>_ci_low`` and ``_ci_high`` for every ``_mean`` column of layers.csv.

    Args:
        table: of ``layers_table(rows)``.
        rows: sample rows with a column ``image_hash``.

    Returns:
        The table with 95 % intervals; empty fields where there is one image alone.
    """
    resampled = _Resampled(table, rows, _BY_LAYER)
    draws = {}
    for metric in (*TOKEN_METRICS, INJECTION):
        draws[f"{metric}_mean"] = resampled.means(f"{metric}_mean", by_tokens=True)
        draws[f"{metric}_sample_mean"] = resampled.means(f"{metric}_mean", by_tokens=False)
    draws["pooled_cosine_mean"] = resampled.means("pooled_cosine", by_tokens=False)
    draws["rms_mean"] = draws["norm_mean"] / np.sqrt(table["hidden_size"].to_numpy())
    return _with_intervals(table, draws, resampled.units)


def interface_intervals(table: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Add ``<column>_ci_low`` and ``_ci_high`` for the means and ratios of interface.csv.

    Rows of an embedding table are no sample: their norms have no interval, the ratios of the
    prompts' tokens to them have one.

    Args:
        table: of ``interface_table(rows, ...)``.
        rows: sample rows with a column ``image_hash``.

    Returns:
        The table with 95 % intervals; empty fields where there is one image alone.
    """
    resampled = _Resampled(table, rows, _BY_STAGE)
    norms = resampled.means("norm_mean", by_tokens=True)
    draws = {"norm_sample_mean": resampled.means("norm_mean", by_tokens=False)}
    # The effective embedding of some models is that of the prompts' text.
    prompt = (table["stage"] == DECODER_INPUT) & (table["group"] == TEXT)
    if prompt.any():
        norms[:, table["group"] == PROMPT_ROWS] = norms[:, prompt]
    draws["norm_mean"] = norms
    draws["rms_mean"] = norms / np.sqrt(table["hidden_size"].to_numpy())
    sampled: NDArray[np.bool_] = np.atleast_2d(np.isfinite(norms).any(axis=0))
    known = np.where(sampled, norms, table["norm_mean"].to_numpy())
    for column, (stage, groups) in REFERENCES.items():
        reference = np.flatnonzero(reference_rows(table, stage, groups))[:1]
        if reference.size:
            ratios = known / known[:, reference]
            draws[column] = np.where(sampled | sampled[:, reference], ratios, np.nan)
    return _with_intervals(table, draws, resampled.units)


def image_units(rows: pd.DataFrame) -> "pd.Series[str]":
    """The unit of each sample row: its image, or the sample where it has none."""
    return rows["image_hash"].where(rows["image_hash"].notna(), rows["sample_id"])


class _Resampled:
    """The sample rows of a table, drawn again and again by unit."""

    def __init__(self, table: pd.DataFrame, rows: pd.DataFrame, by: list[str]) -> None:
        cells = pd.MultiIndex.from_frame(table[by]).get_indexer(pd.MultiIndex.from_frame(rows[by]))
        self._rows, self._cells = rows[cells >= 0], cells[cells >= 0]
        # Factorised in sorted order: the draws do not depend on the order of the rows.
        codes, units = pd.factorize(image_units(rows), sort=True)
        self._codes, self.units = codes[cells >= 0], len(units)
        self._width = len(table)
        self._weights = draw_weights(self.units)

    def means(self, column: str, *, by_tokens: bool) -> NDArray[np.float64]:
        """``[draws, rows of the table]``: means over tokens, or over samples."""
        values = self._rows[column].to_numpy(dtype=np.float64)
        held = ~np.isnan(values)
        weight = self._rows["tokens"].to_numpy(dtype=np.float64) if by_tokens else held * 1.0
        return ratio_draws(
            self._weights,
            self._sums(np.where(held, values * weight, 0.0)),
            self._sums(np.where(held, weight, 0.0)),
        )

    def _sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        places = self._codes * self._width + self._cells
        sums = np.bincount(places, values, self.units * self._width).astype(np.float64)
        return sums.reshape(self.units, self._width)


def _with_intervals(
    table: pd.DataFrame, draws: dict[str, NDArray[np.float64]], units: int
) -> pd.DataFrame:
    columns: dict[str, Sequence[float] | NDArray[np.float64]] = {}
    for name in [name for name in table.columns if name in draws]:
        ends = percentile_interval(draws[name])
        low, high = ends if units > 1 else (np.full(len(table), np.nan),) * 2
        columns[f"{name}_ci_low"], columns[f"{name}_ci_high"] = low, high
    return pd.concat([table, pd.DataFrame(columns, index=table.index)], axis=1)
