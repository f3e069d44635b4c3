"""Statistics that merge exactly: count, mean, M2 and a sparse histogram.

A *sample row* is a dict of one (sample, layer or stage, group). ``merge`` groups such rows; merged
over any split of the tokens it gives the statistics over all tokens at once.

Deviations are population deviations (divided by n): they describe the tokens that were measured.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.schema import GEOMETRIC, QUANTILES
from normprobe.statistics.histograms import SCALES, count_bins, histogram_quantiles, histograms

#: Those of h and of h - x: finite where both states are, and their difference.
_LENGTHS = ("norm", "update_norm")


def statistics_of(values: NDArray[np.floating[Any]], metrics: Sequence[str]) -> dict[str, Any]:
    """The sufficient statistics of some tokens.

    A token whose state is not finite is counted in ``nonfinite`` and enters nothing else. One that
    has no value of some metric (a zero state has no angle) is left out of that metric alone.

    Args:
        values: ``[len(metrics), tokens]``, any float dtype; sums are float64.
        metrics: the name of each row.

    Returns:
        ``tokens``, ``nonfinite``, and per metric ``_mean`` and ``_m2`` (sum of squared
        deviations), and ``_tokens`` where some of the tokens have no value of it; for the metrics
        of ``histograms.SCALES`` also ``_bins`` and ``_counts``; for those of ``GEOMETRIC``
        ``_log_mean``, the mean natural logarithm of those above 0, and ``_log_tokens`` where that
        are not all tokens.
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
    finite = finite_tokens(values, metrics)
    defined = np.isfinite(values)
    kept = defined.all(axis=1)[:, None]
    if ((finite[:, None] & defined) != kept).any():
        kept = finite[:, None] & defined
    spoiled = not kept.all()
    if spoiled:
        values = np.where(kept, values, 0.0)
    tokens, counts = finite.sum(axis=1), np.broadcast_to(kept.sum(axis=-1), values.shape[:2])
    with np.errstate(invalid="ignore"):  # no token, no mean
        means = values.sum(axis=-1) / counts
    deviations = values - means[..., None]
    if spoiled:
        deviations = np.where(kept, deviations, 0.0)
    squares = np.einsum("lmt,lmt->lm", deviations, deviations)
    columns = {"tokens": tokens.tolist(), "nonfinite": (finite.shape[1] - tokens).tolist()}
    for index, name in enumerate(metrics):
        columns[f"{name}_mean"] = means[:, index].tolist()
        columns[f"{name}_m2"] = squares[:, index].tolist()
        if ((counts[:, index] != tokens) & (counts[:, index] > 0)).any():
            columns[f"{name}_tokens"] = counts[:, index].tolist()
        if name in SCALES:
            columns[f"{name}_bins"], columns[f"{name}_counts"] = histograms(
                values[:, index], kept[:, min(index, kept.shape[1] - 1)], SCALES[name]
            )
        if name in GEOMETRIC:
            positive = np.broadcast_to(kept, values.shape)[:, index] & (values[:, index] > 0)
            of_metric = positive.sum(axis=-1)
            with np.errstate(invalid="ignore"):
                logs = np.log(np.where(positive, values[:, index], 1.0)).sum(axis=-1) / of_metric
            columns[f"{name}_log_mean"] = logs.tolist()
            if ((of_metric != tokens) & (of_metric > 0)).any():
                columns[f"{name}_log_tokens"] = of_metric.tolist()
    return columns


def finite_tokens(values: NDArray[np.floating[Any]], metrics: Sequence[str]) -> NDArray[np.bool_]:
    """Which tokens have finite states, ``[layers, tokens]``: their lengths tell.

    Args:
        values: ``[layers, len(metrics), tokens]``.
        metrics: the name of each row. Without a length among them every token counts.
    """
    other = np.array([name not in _LENGTHS for name in metrics])
    finite: NDArray[np.bool_] = (np.isfinite(values) | other[:, None]).all(axis=1)
    return finite


def tokens_of(rows: pd.DataFrame, column: str, tokens: str = "tokens") -> "pd.Series[float]":
    """Over how many tokens the mean of each sample row is.

    Args:
        rows: sample rows.
        column: the mean, ``<metric>_mean``.
        tokens: the column that counts the tokens of the group.
    """
    own = f"{column.removesuffix('_mean')}_tokens"
    return rows[own].fillna(rows[tokens]) if own in rows else rows[tokens]


def merge(rows: pd.DataFrame, by: list[str], metrics: Sequence[str]) -> pd.DataFrame:
    """Group sample rows into a table.

    Args:
        rows: sample rows with the columns of ``statistics_of`` and those of ``by``.
        by: the columns that name a table row.
        metrics: which metrics to merge; the others are left out.

    Returns:
        ``by``, ``tokens``, ``samples``, ``nonfinite`` and per metric ``_mean`` and ``_std`` over
        tokens, ``_sample_mean`` and ``_sample_std`` over per-sample means, quantiles
        (``_q05`` ...) where the rows hold a histogram, and ``_geometric_mean`` over tokens where
        they hold logarithms.
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
        if f"{metric}_log_mean" in rows:
            logs = _moments(rows, codes, len(keys), f"{metric}_log")[f"{metric}_log_mean"]
            columns[f"{metric}_geometric_mean"] = np.exp(logs)
    return table.join(pd.DataFrame(columns, index=keys.index)).reset_index()


def _moments(
    rows: pd.DataFrame, codes: NDArray[np.integer[Any]], groups: int, metric: str
) -> dict[str, NDArray[np.float64]]:
    """Means and deviations over tokens and over samples, one entry a group (Chan et al., 1979)."""
    # A row without the metric has no say in it: layer 0 has norms alone.
    held = rows[f"{metric}_mean"].notna().to_numpy()
    codes = codes[held]
    tokens, mean, m2 = (
        np.asarray(column, dtype=np.float64)[held]
        for column in (
            tokens_of(rows, f"{metric}_mean"),
            rows[f"{metric}_mean"],
            rows.get(f"{metric}_m2", 0.0 * rows[f"{metric}_mean"]),  # logarithms have none
        )
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
    binned = rows[f"{metric}_bins"].notna().to_numpy()
    kept = rows.loc[binned, [f"{metric}_bins", f"{metric}_counts"]]
    bins = np.concatenate([np.empty(0, np.int32), *kept.iloc[:, 0]])
    counts = np.concatenate([np.empty(0, np.int32), *kept.iloc[:, 1]])
    places = np.repeat(codes[binned], kept.iloc[:, 0].map(len).to_numpy(np.int64))
    table, numbers = count_bins(places, bins, counts, groups)
    values = [
        histogram_quantiles(numbers[held], histogram[held], QUANTILES.values(), SCALES[metric])
        for histogram in table
        for held in [histogram > 0]
    ]
    columns = np.array(values).reshape(groups, len(QUANTILES)).T
    return {f"{metric}_{name}": column for name, column in zip(QUANTILES, columns, strict=True)}
