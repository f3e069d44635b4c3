"""Spearman's rank correlation against scipy, its interval against Bonett and Wright's formula."""

import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from normprobe.statistics.bootstrap import rank_correlation


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


@pytest.mark.parametrize("models", [5, 15, 200])
def test_the_interval_is_that_of_bonett_and_wright(models: int) -> None:
    random = np.random.default_rng(models)
    first = random.normal(size=models)
    second = first + random.normal(size=models)
    value = spearmanr(first, second).statistic
    z = 0.5 * math.log((1 + value) / (1 - value))
    reach = 1.959964 * math.sqrt((1 + value**2 / 2) / (models - 3))
    found = rank_correlation(first, second)
    assert (found.low, found.high) == pytest.approx((math.tanh(z - reach), math.tanh(z + reach)))


@pytest.mark.parametrize("sign", [1, -1])
def test_the_order_alone_counts_and_models_without_a_number_have_no_say(sign: int) -> None:
    """Of a perfect order the interval reaches as far down as of one pair out of order."""
    first = [1.0, 2.0, math.nan, 30.0, 400.0, 5000.0, 7.0]
    second = [-5.0, -1.0, 9.0, 0.0, 0.1, 0.2, math.nan]
    found = rank_correlation(first, [sign * number for number in second])
    one_out = spearmanr([1, 2, 3, 4, 5], [1, 2, 3, 5, 4]).statistic
    reach = 1.959964 * math.sqrt((1 + 1 / 2) / 2)
    ends = sorted([sign * 1.0, sign * math.tanh(math.atanh(one_out) - reach)])
    assert found == (5, pytest.approx(sign), pytest.approx(ends[0]), pytest.approx(ends[1]))
    assert -1 <= found.low <= found.value <= found.high <= 1


def test_too_few_models_and_numbers_that_never_differ_have_none() -> None:
    assert rank_correlation([1, 2, 3, 4], [1, 2, 3, 4]).models == 4
    assert math.isnan(rank_correlation([1, 2, 3, 4], [1, 2, 3, 4]).value)
    assert math.isnan(rank_correlation([1] * 6, range(6)).value)
