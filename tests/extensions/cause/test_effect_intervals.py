"""Intervals of effects that few images carry, against the formulas they are named after."""

import numpy as np
import pytest
from scipy import stats

from normprobe.extensions.cause.effect_intervals import (
    FEWEST_CARRIERS,
    ONE_WON_ONE_LOST,
    TWO_OF_EACH,
    beyond,
    mean_interval,
    share_interval,
)
from normprobe.statistics.bootstrap import draw_weights


def drawn(values):
    """``[draws, 1]``: means over images."""
    weights = draw_weights(len(values))
    with np.errstate(invalid="ignore"):
        means = weights @ values / weights.sum(axis=1)
    return means[:, None], np.ones((len(values), 1), bool)


@pytest.mark.parametrize("images", [10, 60, 300])
def test_it_is_never_narrower_than_students_t(images):
    values = np.random.default_rng(images).normal(0.3, 1.0, images)
    draws, held = drawn(values)
    low, high = mean_interval(draws, images, held)[:, 0]
    half = stats.t.ppf(0.975, images - 1) * stats.sem(values)
    near = 0.12 if images > 200 else 1e-9  # of many, groups are left out
    assert low <= values.mean() - half * (1 - near)
    assert high >= values.mean() + half * (1 - near)
    assert high - low < 2.6 * half


def test_it_reaches_further_to_the_side_of_the_far_images():
    values = np.random.default_rng(0).lognormal(0.0, 1.0, 40)
    draws, held = drawn(values)
    skewed = stats.skew(values) / np.sqrt(40)
    assert beyond(draws, 40, held)[:, 0] == pytest.approx([1.0, 1.0 + skewed], rel=1e-9)
    low, high = mean_interval(draws, 40, held)[:, 0]
    assert high - values.mean() > 1.5 * (values.mean() - low)
    mirrored, _ = drawn(-values)
    assert mean_interval(mirrored, 40, held)[:, 0] == pytest.approx([-high, -low], rel=1e-6)


def test_what_few_images_carry_has_no_end():
    values = np.zeros(100)
    values[:FEWEST_CARRIERS] = 1.0
    draws, held = drawn(values)
    assert np.isfinite(mean_interval(draws, 100, held)).all()
    values[0] = 0.0
    draws, held = drawn(values)
    assert np.isnan(mean_interval(draws, 100, held)).all()
    draws, held = drawn(np.zeros(100))
    assert np.isnan(mean_interval(draws, 100, held)).all()


def test_images_that_lack_a_cell_are_none_of_it():
    values = np.random.default_rng(1).normal(0.3, 1.0, 12)
    weights, held = draw_weights(20), np.arange(20)[:, None] < 12
    sums = weights[:, :12] @ values
    with np.errstate(invalid="ignore"):
        draws = (sums / weights[:, :12].sum(axis=1))[:, None]
    low, high = mean_interval(draws, 20, held)[:, 0]
    half = stats.t.ppf(0.975, 11) * stats.sem(values)
    assert low <= values.mean() - half * 0.999 and high >= values.mean() + half * 0.999


@pytest.mark.parametrize("images", [10, 25, 100])
def test_where_nothing_changed_the_bound_is_exact(images):
    draws, held = drawn(np.zeros(images))
    exact = stats.binomtest(0, images).proportion_ci(0.95, method="exact").high
    ends = share_interval(draws, images, held, TWO_OF_EACH)[:, 0]
    assert ends == pytest.approx([0.0, exact], rel=1e-9)
    ends = share_interval(draws, images, held, ONE_WON_ONE_LOST)[:, 0]
    assert ends == pytest.approx([-exact, exact], rel=1e-9)
    draws, _ = drawn(np.ones(images))
    ends = share_interval(draws, images, held, TWO_OF_EACH)[:, 0]
    assert ends == pytest.approx([1 - exact, 1.0], rel=1e-9)


@pytest.mark.parametrize(("lost", "won"), [(1, 0), (6, 2), (12, 0)])
def test_few_changed_answers_are_counted_beside_one_of_each(lost, won, images=40):
    """Bonett and Price, with Student's t in place of the normal distribution."""
    values = np.array([-1.0] * lost + [1.0] * won + [0.0] * (images - lost - won))
    draws, held = drawn(values)
    p, q = (won + 1) / (images + 2), (lost + 1) / (images + 2)
    half = stats.t.ppf(0.975, images - 1) * np.sqrt((p + q - (p - q) ** 2) / (images + 1))
    ends = share_interval(draws, images, held, ONE_WON_ONE_LOST)[:, 0]
    assert ends == pytest.approx([p - q - half, p - q + half], rel=1e-9)


def test_a_share_is_counted_beside_two_of_each(images=30, changed=4):
    """Agresti and Coull, likewise."""
    draws, held = drawn(np.arange(images) < changed)
    p = (changed + 2) / (images + 4)
    half = stats.t.ppf(0.975, images - 1) * np.sqrt(p * (1 - p) / (images + 3))
    ends = share_interval(draws, images, held, TWO_OF_EACH)[:, 0]
    assert ends == pytest.approx([max(0.0, p - half), p + half], rel=1e-9)


def test_one_image_has_no_interval():
    draws, held = drawn(np.array([1.0]))
    assert np.isnan(share_interval(draws, 1, held, ONE_WON_ONE_LOST)).all()
    assert np.isnan(mean_interval(draws, 1, held)).all()
