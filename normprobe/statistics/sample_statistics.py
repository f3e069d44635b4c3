"""Statistics that merge exactly: counts, means, M2, co-moments and sparse histograms."""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations_with_replacement, pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.schema import GEOMETRIC, IMAGE, NON_VISUAL, SPECIAL, TOKEN_METRICS, VIDEO, VISUAL
from normprobe.tidy import QUANTILES, Numbers

#: Bin i of a norm or an angle holds (GROWTH**i, GROWTH**(i+1)].
GROWTH = 1.02
QUANTILE_RELATIVE_ERROR = (GROWTH - 1) / (GROWTH + 1)
ZERO_BIN = int(np.iinfo(np.int32).min)  # below every bin of a positive float

#: Bin i of a cosine holds [i * COSINE_WIDTH, (i+1) * COSINE_WIDTH); 1 belongs to the last.
COSINE_WIDTH = 0.002
COSINE_QUANTILE_ERROR = COSINE_WIDTH / 2
_LOG_GROWTH = float(np.log(GROWTH))
_COSINE_BINS = round(1 / COSINE_WIDTH)  # on either side of 0


class HistogramScale(NamedTuple):
    """How values become bin numbers, and bin numbers the values that stand for them."""

    bins: Callable[[NDArray[np.floating[Any]]], NDArray[np.int64]]
    values: Callable[[NDArray[np.integer[Any]]], NDArray[np.float64]]


def _ratio_bins(values: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    positive = values > 0
    logs = np.log(values, where=positive, out=np.zeros_like(values))
    return np.where(positive, np.ceil(logs / _LOG_GROWTH).astype(np.int64) - 1, ZERO_BIN)


def _ratio_values(bins: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    # Between both ends of the bin at the point of equal relative distance.
    values = 2.0 * GROWTH / (GROWTH + 1) * np.exp(_LOG_GROWTH * bins.astype(np.float64))
    return np.where(bins == ZERO_BIN, 0.0, values)


def _cosine_bins(values: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    # Rounding lets a cosine of float32 states exceed 1.
    bins = np.floor(values * _COSINE_BINS).astype(np.int64)
    clipped: NDArray[np.int64] = bins.clip(-_COSINE_BINS, _COSINE_BINS - 1)
    return clipped


def _cosine_values(bins: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    return (bins.astype(np.float64) + 0.5) * COSINE_WIDTH


RATIO = HistogramScale(_ratio_bins, _ratio_values)

#: The metrics whose distribution is kept.
SCALES = {"norm": RATIO, "cosine": HistogramScale(_cosine_bins, _cosine_values), "angle": RATIO}


def histogram_of(
    values: NDArray[np.floating[Any]], scale: HistogramScale = RATIO
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Bin numbers that occur, ascending, and how often.

    Args:
        values: ``[tokens]``, finite; of norms and angles >= 0.
        scale: of ``SCALES``.
    """
    (bins,), (counts,) = histograms(values[None], np.ones((1, len(values)), dtype=bool), scale)
    return bins, counts


def histograms(
    values: NDArray[np.floating[Any]], counted: NDArray[np.bool_], scale: HistogramScale
) -> tuple[list[NDArray[np.int32]], list[NDArray[np.int64]]]:
    """``histogram_of`` each row of ``values`` where ``counted``, both ``[rows, tokens]``."""
    rows, _ = np.nonzero(counted)
    table, numbers = count_bins(rows, scale.bins(values[counted]), None, len(counted))
    row, place = np.nonzero(table)
    occurring, counts = numbers[place].astype(np.int32), table[row, place].astype(np.int64)
    ends = np.searchsorted(row, np.arange(len(counted) + 1)).tolist()
    slices = [slice(start, end) for start, end in pairwise(ends)]
    return [occurring[part] for part in slices], [counts[part] for part in slices]


def count_bins(
    rows: NDArray[np.integer[Any]],
    bins: NDArray[np.integer[Any]],
    counts: NDArray[np.integer[Any]] | None,
    height: int,
) -> tuple[NDArray[Any], NDArray[np.integer[Any]]]:
    """How often each bin occurs in each row.

    Args:
        rows: ``[n]``, from 0 to ``height`` - 1.
        bins: ``[n]`` bin numbers.
        counts: ``[n]`` how often each counts; None: once.
        height: how many rows.

    Returns:
        ``[height, bins]``, and the number of each bin, ascending.
    """
    # A table of all bins between the ends, the zero bin first: counting into it takes no sorting.
    above_zero = bins != ZERO_BIN
    lowest = int(bins[above_zero].min()) if above_zero.any() else 0
    places = np.where(above_zero, bins - lowest + 1, 0)
    width = int(places.max(initial=0)) + 1
    table = np.bincount(rows * width + places, counts, height * width)
    numbers = np.arange(width) + lowest - 1
    numbers[0] = ZERO_BIN
    return table.reshape(height, width), numbers


def histogram_quantiles(
    bins: NDArray[np.integer[Any]],
    counts: NDArray[np.integer[Any]],
    probabilities: Iterable[float],
    scale: HistogramScale = RATIO,
) -> NDArray[np.float64]:
    """Quantiles by the inverted distribution function, each within half a bin.

    Args:
        bins: bin numbers, in any order, repeated bins allowed.
        counts: how often each occurs.
        probabilities: in (0, 1].
        scale: with which the bins were made.

    Returns:
        One value a probability; NaN when nothing was counted.
    """
    probabilities = np.fromiter(probabilities, dtype=np.float64)
    if not len(bins):
        return np.full(len(probabilities), np.nan)
    order = np.argsort(bins, kind="stable")
    bins, cumulative = np.asarray(bins)[order], np.cumsum(np.asarray(counts)[order])
    ranks = np.ceil(probabilities * cumulative[-1]).clip(1)
    return scale.values(bins[np.searchsorted(cumulative, ranks)])


#: ||x||, the norm that enters a layer; ||D||, the size of the update; the angle between x and h.
LOGARITHMS = ("log_norm", "log_update", "log_angle")
LOG_TOKENS = "log_tokens"


def product_of(first: str, second: str) -> str:
    """The column with the sum of products of deviations of two of ``LOGARITHMS``."""
    return "_".join(sorted((first, second), key=LOGARITHMS.index)) + "_m11"


PRODUCTS = tuple(
    product_of(first, second) for first, second in combinations_with_replacement(LOGARITHMS, 2)
)

CO_MOMENTS = (LOG_TOKENS, *(f"{name}_mean" for name in LOGARITHMS), *PRODUCTS)


def co_moments(metrics: NDArray[np.floating[Any]]) -> dict[str, list[float]]:
    """Moments of the logarithms of some tokens.

    Tokens that do not move have no logarithm and are left out, as are non-finite ones.

    Args:
        metrics: ``[layers, at least len(TOKEN_METRICS), tokens]``, in the order of
            ``schema.TOKEN_METRICS``; layer 0, which has no angle, is not among them.

    Returns:
        Columns named by ``CO_MOMENTS``, one entry a layer: how many tokens count, the mean of each
        logarithm, and for each pair of them the sum of products of deviations, a pair of the same
        being its sum of squares. Means are NaN where no token counts.
    """
    update, relative, angle = (
        metrics[:, TOKEN_METRICS.index(name)].astype(np.float64)
        for name in ("update_norm", "relative_update", "angle")
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log([update / relative, update, angle])  # [logarithms, layers, tokens]
        counted = np.isfinite(metrics).all(axis=1) & np.isfinite(logs).all(axis=0)
        tokens = counted.sum(axis=-1)
        means = np.where(counted, logs, 0.0).sum(axis=-1) / tokens
        deviations = np.where(counted, logs - means[..., None], 0.0)
    sums = np.einsum("ilt,jlt->ijl", deviations, deviations)
    pairs = combinations_with_replacement(range(len(LOGARITHMS)), 2)
    columns = [tokens, *means, *(sums[pair] for pair in pairs)]
    return {name: column.tolist() for name, column in zip(CO_MOMENTS, columns, strict=True)}


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


def reported_groups(rows: pd.DataFrame) -> pd.DataFrame:
    """Sample rows of the groups that tables tell.

    Where some samples hold videos: rows of images, beneath ``visual``, of those without, too. Where
    no token is special: no rows of ``non_visual``, which repeat those of text.
    """
    place = "stage" if "stage" in rows else "layer"
    special = rows.loc[rows["group"] == SPECIAL, place].unique()
    rows = rows[(rows["group"] != NON_VISUAL) | rows[place].isin(special)]
    beside_video = rows["sample_id"].isin(rows.loc[rows["group"] == VIDEO, "sample_id"])
    of_images = rows[(rows["group"] == VISUAL) & ~beside_video]
    if not beside_video.any() or of_images.empty:
        return rows
    return pd.concat([rows, of_images.assign(group=IMAGE)], ignore_index=True)


def merge(
    rows: pd.DataFrame, by: list[str], metrics: Sequence[str]
) -> tuple[pd.DataFrame, Numbers]:
    """Group sample rows into the cells of a table.

    Args:
        rows: sample rows with the columns of ``statistics_of`` and those of ``by``.
        by: the keys of the table.
        metrics: which metrics to merge; the others are left out.

    Returns:
        The cells, ``by``, ``tokens`` and ``samples``; and of each metric ``mean`` and ``std`` over
        tokens, ``sample_mean`` and ``sample_std`` over per-sample means, quantiles (``q05`` ...)
        where the rows hold a histogram, and ``geometric_mean`` over tokens where they hold
        logarithms. ``nonfinite`` counts the tokens that are left out.
    """
    groups = rows.groupby(by, sort=False)
    codes, keys = groups.ngroup().to_numpy(), groups.size()
    counted = groups.agg(tokens=("tokens", "sum"), nonfinite=("nonfinite", "sum")).astype(int)
    numbers: Numbers = {"nonfinite": {"mean": counted.pop("nonfinite").to_numpy()}}
    for metric in metrics:
        numbers[metric] = _moments(rows, codes, len(keys), metric)
        if f"{metric}_bins" in rows:
            numbers[metric] |= _quantiles(rows, codes, len(keys), metric)
        if f"{metric}_log_mean" in rows:
            logs = _moments(rows, codes, len(keys), f"{metric}_log")["mean"]
            numbers[metric]["geometric_mean"] = np.exp(logs)
    return counted.assign(samples=keys).reset_index(), numbers


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
        "mean": center,
        "std": np.sqrt(spread),
        "sample_mean": sample_center,
        "sample_std": np.sqrt(sample_spread),
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
    return dict(zip(QUANTILES, columns, strict=True))
