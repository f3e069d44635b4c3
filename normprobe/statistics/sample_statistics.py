"""Statistics that merge exactly: count, mean, M2 and a sparse log-spaced histogram.

A *sample row* is a dict of one (sample, layer or stage, group). ``merge`` groups such rows; merged
over any split of the tokens it gives the statistics over all tokens at once.

Deviations are population deviations (divided by n): they describe the tokens that were measured.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
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
    columns = statistics_by_layer(np.asarray(values)[None], metrics)
    return {name: column[0] for name, column in columns.items()}


def statistics_by_layer(
    values: NDArray[np.floating[Any]], metrics: Sequence[str]
) -> dict[str, list[Any]]:
    """``statistics_of`` the same tokens at many layers, in one pass.

    Args:
        values: ``[layers, len(metrics), tokens]``, any float dtype; sums are float64.
        metrics: the name of each row.

    Returns:
        The columns of ``statistics_of``, each with one entry a layer.
    """
    values = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(values).all(axis=1)  # [layers, tokens]
    kept = finite[:, None]
    spoiled = not finite.all()
    if spoiled:
        values = np.where(kept, values, 0.0)
    tokens = finite.sum(axis=1)
    with np.errstate(invalid="ignore"):  # no token, no mean
        means = values.sum(axis=-1) / tokens[:, None]
    deviations = values - means[..., None]
    if spoiled:
        deviations = np.where(kept, deviations, 0.0)
    squares = np.einsum("lmt,lmt->lm", deviations, deviations)
    columns = {"tokens": tokens.tolist(), "nonfinite": (finite.shape[1] - tokens).tolist()}
    for index, name in enumerate(metrics):
        columns[f"{name}_mean"] = means[:, index].tolist()
        columns[f"{name}_m2"] = squares[:, index].tolist()
        if name in HISTOGRAM_METRICS:
            columns[f"{name}_bins"], columns[f"{name}_counts"] = _histograms(
                values[:, index], finite
            )
    return columns


def histogram_of(
    values: NDArray[np.float64],
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Bin numbers that occur, ascending, and how often. Values are >= 0."""
    (bins,), (counts,) = _histograms(values[None], np.ones((1, len(values)), dtype=bool))
    return bins, counts


def _histograms(
    values: NDArray[np.floating[Any]], counted: NDArray[np.bool_]
) -> tuple[list[NDArray[np.int32]], list[NDArray[np.int64]]]:
    """``histogram_of`` each row of ``values`` where ``counted``, both ``[rows, tokens]``."""
    rows, _ = np.nonzero(counted)
    values = values[counted]
    positive = values > 0
    logs = np.log(values, where=positive, out=np.zeros_like(values))
    bins = np.where(positive, np.ceil(logs / _LOG_GROWTH).astype(np.int64) - 1, ZERO_BIN)
    table, numbers = _count_bins(rows, bins, None, len(counted))
    row, place = np.nonzero(table)
    occurring, counts = numbers[place].astype(np.int32), table[row, place].astype(np.int64)
    ends = np.searchsorted(row, np.arange(len(counted) + 1)).tolist()
    slices = [slice(start, end) for start, end in pairwise(ends)]
    return [occurring[part] for part in slices], [counts[part] for part in slices]


def _count_bins(
    rows: NDArray[np.integer[Any]],
    bins: NDArray[np.integer[Any]],
    counts: NDArray[np.integer[Any]] | None,
    height: int,
) -> tuple[NDArray[Any], NDArray[np.integer[Any]]]:
    """How often each bin occurs in each row, ``[height, bins]``, and the number of each bin.

    A table of all bins between the ends, the zero bin first: counting into it takes no sorting.
    """
    positive = bins != ZERO_BIN
    lowest = int(bins[positive].min(initial=0))
    places = np.where(positive, bins - lowest + 1, 0)
    width = int(places.max(initial=0)) + 1
    table = np.bincount(rows * width + places, counts, height * width)
    numbers = np.arange(width) + lowest - 1
    numbers[0] = ZERO_BIN
    return table.reshape(height, width), numbers


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
    codes, keys = groups.ngroup().to_numpy(), groups.size()
    table = groups.agg(tokens=("tokens", "sum"), nonfinite=("nonfinite", "sum")).astype(int)
    table.insert(1, "samples", keys)
    columns: dict[str, NDArray[np.float64]] = {}
    for metric in metrics:
        columns |= _moments(rows, codes, len(keys), metric)
        if f"{metric}_bins" in rows:
            columns |= _quantiles(rows, codes, len(keys), metric)
    return table.join(pd.DataFrame(columns, index=keys.index)).reset_index()


def _moments(
    rows: pd.DataFrame, codes: NDArray[np.integer[Any]], groups: int, metric: str
) -> dict[str, NDArray[np.float64]]:
    """Means and deviations over tokens and over samples, one entry a group (Chan et al., 1979)."""
    # A row without the metric has no say in it: layer 0 has norms alone.
    held = rows[f"{metric}_mean"].notna().to_numpy()
    codes = codes[held]
    tokens, mean, m2 = (
        rows[column].to_numpy(dtype=np.float64)[held]
        for column in ("tokens", f"{metric}_mean", f"{metric}_m2")
    )

    def total(values: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        return np.bincount(codes, values, groups).astype(np.float64)

    with np.errstate(invalid="ignore"):  # a group without the metric: 0 / 0
        center, sample_center = total(tokens * mean) / total(tokens), total(mean) / total()
        spread = total(m2 + tokens * (mean - center[codes]) ** 2) / total(tokens)
        sample_spread = total((mean - sample_center[codes]) ** 2) / total()
    return {
        f"{metric}_mean": center,
        f"{metric}_std": np.sqrt(spread),
        f"{metric}_sample_mean": sample_center,
        f"{metric}_sample_std": np.sqrt(sample_spread),
    }


def _quantiles(
    rows: pd.DataFrame, codes: NDArray[np.integer[Any]], groups: int, metric: str
) -> dict[str, NDArray[np.float64]]:
    """One entry a quantile and group. The histograms of a group are added up first."""
    held = rows[f"{metric}_bins"].notna().to_numpy()
    kept = rows.loc[held, [f"{metric}_bins", f"{metric}_counts"]]
    bins = np.concatenate([np.empty(0, np.int32), *kept.iloc[:, 0]])
    counts = np.concatenate([np.empty(0, np.int32), *kept.iloc[:, 1]])
    places = np.repeat(codes[held], kept.iloc[:, 0].map(len).to_numpy(np.int64))
    table, numbers = _count_bins(places, bins, counts, groups)
    values = [
        histogram_quantiles(numbers[histogram > 0], histogram[histogram > 0], QUANTILES.values())
        for histogram in table
    ]
    columns = np.array(values).reshape(groups, len(QUANTILES)).T
    return {f"{metric}_{name}": column for name, column in zip(QUANTILES, columns, strict=True)}
