"""Spearman's rank correlation against scipy, and its interval against draws made one by one."""

import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from normprobe.statistics.rank_correlation import rank_correlation


@pytest.mark.parametrize("models", [5, 12, 40])
@pytest.mark.parametrize("ties", [False, True])
def test_the_correlation_is_that_of_scipy(models: int, ties: bool) -> None:
    random = np.random.default_rng(models)
    first, second = random.normal(size=(2, models)) + random.normal(size=models)
    if ties:
        first = np.round(first)
    found = rank_correlation(first, second)
    assert found.models == models
    assert found.value == pytest.approx(spearmanr(first, second).statistic, abs=1e-12)
    assert found.low <= found.value <= found.high


def test_the_interval_is_that_of_models_drawn_again() -> None:
    random = np.random.default_rng(1)
    first = random.normal(size=15)
    second = first + random.normal(size=15)
    draws = []
    for _ in range(4000):
        drawn = random.integers(15, size=15)
        draws.append(spearmanr(first[drawn], second[drawn]).statistic)
    found = rank_correlation(first, second)
    assert (found.low, found.high) == pytest.approx(np.quantile(draws, [0.025, 0.975]), abs=0.05)


def test_the_order_alone_counts_and_models_without_a_number_have_no_say() -> None:
    first = [1.0, 2.0, math.nan, 30.0, 400.0, 5000.0, 7.0]
    second = [-5.0, -1.0, 9.0, 0.0, 0.1, 0.2, math.nan]
    found = rank_correlation(first, second)
    assert found == (5, 1.0, 1.0, 1.0)


def test_too_few_models_and_numbers_that_never_differ_have_none() -> None:
    assert rank_correlation([1, 2, 3, 4], [1, 2, 3, 4]).models == 4
    assert math.isnan(rank_correlation([1, 2, 3, 4], [1, 2, 3, 4]).value)
    assert math.isnan(rank_correlation([1] * 6, range(6)).value)
