"""Statistics that merge exactly: count, mean, M2 and a sparse log-spaced histogram.

A *sample row* is a dict of one (sample, layer or stage, group). ``merge`` groups such rows; merged
over any split of the tokens it gives the statistics over all tokens at once.

Deviations are population deviations (divided by n): they describe the tokens that were measured.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.schema import HISTOGRAM_METRICS, QUANTILES

#: Bin i holds (GROWTH**i, GROWTH**(i+1)]. A value taken from its bin errs by at most 1 %.
GROWTH = 1.02
QUANTILE_RELATIVE_ERROR = (GROWTH - 1) / (GROWTH + 1)
ZERO_BIN = int(np.iinfo(np.int32).min)  # below every bin of a positive float

_LOG_GROWTH = float(np.log(GROWTH))


def statistics_of(values: NDArray[np.floating[Any]], metrics: Sequence[str]) -> dict[str, Any]:
    """The sufficient statistics of some tokens.

    A token with a non-finite value is counted in ``nonfinite`` and enters nothing else.

    Args:
        values: ``[len(metrics), tokens]``, any float dtype; sums are float64.
        metrics: the name of each row.

    Returns:
        ``tokens``, ``nonfinite``, and per metric ``_mean`` and ``_m2`` (sum of squared
        deviations); for ``schema.HISTOGRAM_METRICS`` also ``_bins`` and ``_counts``.
    """
    values = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(values).all(axis=0)
    values = values[:, finite]
    tokens = values.shape[1]
    row: dict[str, Any] = {"tokens": tokens, "nonfinite": int(finite.size - tokens)}
    means = values.mean(axis=1) if tokens else np.full(len(metrics), np.nan)
    squares = ((values - means[:, None]) ** 2).sum(axis=1)
    for name, series, mean, m2 in zip(metrics, values, means, squares, strict=True):
        row[f"{name}_mean"], row[f"{name}_m2"] = float(mean), float(m2)
        if name in HISTOGRAM_METRICS:
            row[f"{name}_bins"], row[f"{name}_counts"] = histogram_of(series)
    return row


def histogram_of(
    values: NDArray[np.float64],
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Bin numbers that occur, ascending, and how often. Values are >= 0."""
    positive = values > 0
    bins = np.full(values.shape, ZERO_BIN, dtype=np.int32)
    bins[positive] = np.ceil(np.log(values[positive]) / _LOG_GROWTH).astype(np.int32) - 1
    numbers, counts = np.unique(bins, return_counts=True)
    return numbers, counts.astype(np.int64)


def histogram_quantiles(
    bins: NDArray[np.integer[Any]],
    counts: NDArray[np.integer[Any]],
    probabilities: Iterable[float],
) -> NDArray[np.float64]:
    """Quantiles by the inverted distribution function, within ``QUANTILE_RELATIVE_ERROR``.

    Args:
        bins: bin numbers, in any order, repeated bins allowed.
        counts: how often each occurs.
        probabilities: in (0, 1].

    Returns:
        One value a probability; NaN when nothing was counted.
    """
    probabilities = np.fromiter(probabilities, dtype=np.float64)
    if not len(bins):
        return np.full(len(probabilities), np.nan)
    order = np.argsort(bins, kind="stable")
    bins, cumulative = np.asarray(bins)[order], np.cumsum(np.asarray(counts)[order])
    ranks = np.ceil(probabilities * cumulative[-1]).clip(1)
    chosen = bins[np.searchsorted(cumulative, ranks)]
    # Between both ends of the bin at the point of equal relative distance.
    values = 2.0 * GROWTH / (GROWTH + 1) * np.exp(_LOG_GROWTH * chosen.astype(np.float64))
    return np.where(chosen == ZERO_BIN, 0.0, values)


def merge(rows: pd.DataFrame, by: list[str], metrics: Sequence[str]) -> pd.DataFrame:
    """Group sample rows into a table.

    Args:
        rows: sample rows with the columns of ``statistics_of`` and those of ``by``.
        by: the columns that name a table row.
        metrics: which metrics to merge; the others are left out.

    Returns:
        ``by``, ``tokens``, ``samples``, ``nonfinite`` and per metric ``_mean`` and ``_std`` over
        tokens, ``_sample_mean`` and ``_sample_std`` over per-sample means, and quantiles
        (``_q05`` ...) where the rows hold a histogram.
    """
    groups = rows.groupby(by, sort=False)
    table = groups.agg(tokens=("tokens", "sum"), nonfinite=("nonfinite", "sum")).astype(int)
    table.insert(1, "samples", groups.size())
    for metric in metrics:
        table = table.join(_moments(rows, by, metric))
        if f"{metric}_bins" in rows:
            table = table.join(_quantiles(groups, metric))
    return table.reset_index()


def _moments(rows: pd.DataFrame, by: list[str], metric: str) -> pd.DataFrame:
    """Means and deviations over tokens and over samples, one row a group (Chan et al., 1979)."""
    held = rows[[*by, "tokens"]].assign(mean=rows[f"{metric}_mean"], m2=rows[f"{metric}_m2"])
    # A row without the metric has no say in it: layer 0 has norms alone.
    held = held.dropna(subset="mean").assign(total=lambda row: row["tokens"] * row["mean"])
    groups = held.groupby(by, sort=False)
    center = groups["total"].transform("sum") / groups["tokens"].transform("sum")
    held["spread"] = held["m2"] + held["tokens"] * (held["mean"] - center) ** 2
    groups = held.groupby(by, sort=False)
    tokens = groups["tokens"].sum()
    return pd.DataFrame(
        {
            f"{metric}_mean": groups["total"].sum() / tokens,
            f"{metric}_std": np.sqrt(groups["spread"].sum() / tokens),
            f"{metric}_sample_mean": groups["mean"].mean(),
            f"{metric}_sample_std": groups["mean"].std(ddof=0),
        }
    )


def _quantiles(groups: Any, metric: str) -> pd.DataFrame:
    """One column a quantile, one row a group."""

    def of_group(group: pd.DataFrame) -> pd.Series:
        held = group[group[f"{metric}_bins"].notna()]
        bins = np.concatenate([[], *held[f"{metric}_bins"]])
        counts = np.concatenate([[], *held[f"{metric}_counts"]])
        values = histogram_quantiles(bins, counts, QUANTILES.values())
        return pd.Series(values, index=[f"{metric}_{name}" for name in QUANTILES])

    quantiles: pd.DataFrame = groups.apply(of_group)
    return quantiles
