"""What a bin number says of the value that was put there."""

import numpy as np
import pytest

from normprobe.statistics.sample_statistics import (
    COSINE_QUANTILE_ERROR,
    QUANTILE_RELATIVE_ERROR,
    SCALES,
    ZERO_BIN,
    histogram_of,
    histogram_quantiles,
)

COSINE = SCALES["cosine"]


def test_zeros_have_a_bin_of_their_own() -> None:
    bins, counts = histogram_of(np.array([0.0, 0.0, 0.0, 5.0]))
    assert bins[0] == ZERO_BIN
    assert counts.tolist() == [3, 1]
    low, high = histogram_quantiles(bins, counts, [0.5, 1.0])
    assert low == 0.0
    assert high == pytest.approx(5.0, rel=QUANTILE_RELATIVE_ERROR)


def test_a_power_of_the_growth_stays_in_reach_of_its_bin() -> None:
    values = 1.02 ** np.arange(-400, 400, dtype=np.float64)
    for value in values:
        (quantile,) = histogram_quantiles(*histogram_of(np.array([value])), [1.0])
        assert quantile == pytest.approx(value, rel=QUANTILE_RELATIVE_ERROR + 1e-9)


@pytest.mark.parametrize("cosine", [-1.0, -0.9999, -0.002, 0.0, 1e-9, 0.001, 0.5, 0.9999, 1.0])
def test_a_cosine_stays_in_reach_of_its_bin(cosine: float) -> None:
    (quantile,) = histogram_quantiles(*histogram_of(np.array([cosine]), COSINE), [0.5], COSINE)
    assert quantile == pytest.approx(cosine, abs=COSINE_QUANTILE_ERROR + 1e-12)
    assert -1 < quantile < 1


def test_a_cosine_that_rounding_lifted_above_1_is_in_the_last_bin() -> None:
    above = np.array([1.0 + 1e-7, -1.0 - 1e-7])
    bins, counts = histogram_of(above, COSINE)
    assert counts.tolist() == [1, 1]
    low, high = histogram_quantiles(bins, counts, [0.5, 1.0], COSINE)
    np.testing.assert_allclose([low, high], [-1, 1], atol=COSINE_QUANTILE_ERROR + 1e-12)


def test_quantiles_near_zero_are_not_those_of_the_angle() -> None:
    """Cosines of quantiles of the angle, which are within 1 %, miss by 0.015 here."""
    cosines = np.random.default_rng(0).normal(0.01, 0.02, 2000)
    probabilities = [0.05, 0.25, 0.5, 0.75, 0.95]
    found = histogram_quantiles(*histogram_of(cosines, COSINE), probabilities, COSINE)
    exact = np.quantile(cosines, probabilities, method="inverted_cdf")
    np.testing.assert_allclose(found, exact, atol=COSINE_QUANTILE_ERROR + 1e-12)


@pytest.mark.parametrize("count", [2, 3, 5, 7])
def test_a_quantile_is_the_first_value_that_reaches_its_share(count: int) -> None:
    values = 10.0 ** np.arange(count)
    probabilities = np.linspace(0.03, 0.97, 29)
    found = histogram_quantiles(*histogram_of(values), probabilities)
    exact = np.quantile(values, probabilities, method="inverted_cdf")
    np.testing.assert_allclose(found, exact, rtol=QUANTILE_RELATIVE_ERROR + 1e-9)


def test_the_errors_are_those_that_are_stated() -> None:
    assert QUANTILE_RELATIVE_ERROR <= 0.01
    assert COSINE_QUANTILE_ERROR <= 0.001
