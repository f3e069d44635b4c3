"""Spearman's rank correlation over models, with its bootstrap interval."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.statistics.bootstrap import DRAWS, SEED, percentile_interval

#: With fewer models a correlation says nothing: four are in order by chance once in 24 times.
FEWEST = 5


class Correlation(NamedTuple):
    """A rank correlation and its 95 % interval.

    Attributes:
        models: how many have both numbers.
        value: -1 to 1; NaN with fewer than ``FEWEST`` models, or where one number never differs.
        low: the lower end of the interval by 1000 draws of models; NaN as ``value``.
        high: the upper end, likewise.
    """

    models: int
    value: float = np.nan
    low: float = np.nan
    high: float = np.nan


def rank_correlation(first: Iterable[float], second: Iterable[float]) -> Correlation:
    """Spearman's rank correlation of two numbers of each model; ties get their mean rank.

    Args:
        first: one a model; NaN: the model has no say.
        second: likewise, in the same order.
    """
    pairs = np.array([list(first), list(second)], dtype=np.float64)
    pairs = pairs[:, ~np.isnan(pairs).any(axis=0)]
    models = pairs.shape[1]
    if models < FEWEST:
        return Correlation(models)
    drawn = np.random.default_rng(SEED).integers(models, size=(DRAWS, models))
    places = np.vstack([np.arange(models), drawn])  # the first draw is the models as they are
    ranks = [_centred_ranks(numbers[places]) for numbers in pairs]
    with np.errstate(invalid="ignore"):  # a draw of one model alone has no correlation
        draws = np.sum(ranks[0] * ranks[1], axis=1) / np.sqrt(
            np.prod([np.sum(of_one**2, axis=1) for of_one in ranks], axis=0)
        )
    low, high = percentile_interval(draws[1:, None])
    return Correlation(models, float(draws[0]), float(low[0]), float(high[0]))


def _centred_ranks(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each row, less their mean."""
    ranks = pd.DataFrame(numbers).rank(axis=1).to_numpy()
    centred: NDArray[np.float64] = ranks - ranks.mean(axis=1, keepdims=True)
    return centred
