"""Sparse histograms that merge exactly, and the quantiles that are read from them.

A histogram is the numbers of the bins that occur and how often. Norms and angles, which span orders
of magnitude, have bins of equal ratio: a quantile errs by at most 1 % of its value. Cosines have
bins of equal width: a quantile errs by at most 0.001, also near 0.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Bin i of a norm or an angle holds (GROWTH**i, GROWTH**(i+1)].
GROWTH = 1.02
QUANTILE_RELATIVE_ERROR = (GROWTH - 1) / (GROWTH + 1)
ZERO_BIN = int(np.iinfo(np.int32).min)  # below every bin of a positive float

#: Bin i of a cosine holds [i * COSINE_WIDTH, (i+1) * COSINE_WIDTH); 1 belongs to the last.
COSINE_WIDTH = 0.002
COSINE_QUANTILE_ERROR = COSINE_WIDTH / 2

_LOG_GROWTH = float(np.log(GROWTH))
_COSINE_BINS = round(1 / COSINE_WIDTH)  # on either side of 0


class Scale(NamedTuple):
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


RATIO = Scale(_ratio_bins, _ratio_values)

#: The metrics whose distribution is kept.
SCALES = {"norm": RATIO, "cosine": Scale(_cosine_bins, _cosine_values), "angle": RATIO}


def histogram_of(
    values: NDArray[np.floating[Any]], scale: Scale = RATIO
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Bin numbers that occur, ascending, and how often.

    Args:
        values: ``[tokens]``, finite; of norms and angles >= 0.
        scale: of ``SCALES``.
    """
    (bins,), (counts,) = histograms(values[None], np.ones((1, len(values)), dtype=bool), scale)
    return bins, counts


def histograms(
    values: NDArray[np.floating[Any]], counted: NDArray[np.bool_], scale: Scale
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
    scale: Scale = RATIO,
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
