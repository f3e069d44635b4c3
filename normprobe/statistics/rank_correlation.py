"""Spearman's rank correlation over models, with its interval."""

import math
from collections.abc import Iterable
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import pandas as pd

from normprobe.statistics.bootstrap import LEVEL

#: With fewer models a correlation says nothing: four are in order by chance once in 24 times.
FEWEST = 5


class Correlation(NamedTuple):
    """A rank correlation and its 95 % interval.

    Attributes:
        models: how many have both numbers.
        value: -1 to 1; NaN with fewer than ``FEWEST`` models, or where one number never differs.
        low: the lower end of the interval; NaN as ``value``.
        high: the upper end, likewise.
    """

    models: int
    value: float = np.nan
    low: float = np.nan
    high: float = np.nan


def rank_correlation(first: Iterable[float], second: Iterable[float]) -> Correlation:
    """Spearman's rank correlation of two numbers of each model; ties get their mean rank.

    The interval is that of Fisher's z with the variance of Bonett and Wright (2000): draws of a few
    models repeat some of them, and their ranks go together by that alone.

    Args:
        first: one a model; NaN: the model has no say.
        second: likewise, in the same order.
    """
    pairs = np.array([list(first), list(second)], dtype=np.float64)
    pairs = pairs[:, ~np.isnan(pairs).any(axis=0)]
    models = pairs.shape[1]
    if models < FEWEST:
        return Correlation(models)
    first_ranks, second_ranks = pd.DataFrame(pairs.T).rank().to_numpy().T
    with np.errstate(invalid="ignore"):  # of numbers that never differ there is no correlation
        value = round(float(np.corrcoef(first_ranks, second_ranks)[0, 1]), 12)  # 1, not almost 1
    if math.isnan(value):
        return Correlation(models)
    reach = NormalDist().inv_cdf((1 + LEVEL) / 2) * math.sqrt((1 + value**2 / 2) / (models - 3))
    # Of ranks in perfect order z has no end: one pair out of order is the next they could be.
    most = 1 - 6 * 2 / (models * (models**2 - 1))
    z = math.atanh(max(-most, min(most, value)))
    low, high = math.tanh(z - reach), math.tanh(z + reach)
    return Correlation(models, value, min(low, value), max(high, value))
