"""The bootstrap against one that repeats units, and against what an interval promises."""

import numpy as np
import pytest

from normprobe.statistics.bootstrap import draw_weights, percentile_interval, ratio_draws


def test_draws_are_with_replacement_and_seeded() -> None:
    weights = draw_weights(30, 500, seed=3)
    assert (weights.sum(axis=1) == 30).all()
    assert (weights == draw_weights(30, 500, seed=3)).all()
    assert (weights != draw_weights(30, 500, seed=4)).any()
    # A unit is left out of a draw with probability (1 - 1/n)^n.
    assert (weights == 0).mean() == pytest.approx((1 - 1 / 30) ** 30, abs=0.01)


def test_a_draw_repeats_units() -> None:
    random = np.random.default_rng(0)
    tokens = random.integers(1, 9, size=(12, 2)).astype(float)
    values = [[random.normal(size=int(n)) for n in row] for row in tokens]
    totals = np.array([[cell.sum() for cell in row] for row in values])
    weights = draw_weights(12, 40, seed=1)
    found = ratio_draws(weights, totals, tokens)
    for draw, counts in enumerate(weights.astype(int)):
        for cell in range(2):
            pooled = [values[unit][cell] for unit in range(12) for _ in range(counts[unit])]
            assert found[draw, cell] == pytest.approx(np.concatenate(pooled).mean(), rel=1e-12)


def test_a_draw_without_a_cell_has_no_say() -> None:
    present = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    draws = ratio_draws(np.array([[2.0, 0.0], [0.0, 2.0], [1.0, 1.0]]), present * 5, present)
    low, high = percentile_interval(draws)
    np.testing.assert_array_equal(low[:2], [5.0, 5.0])
    np.testing.assert_array_equal(high[:2], [5.0, 5.0])
    assert np.isnan([low[2], high[2]]).all()


def test_95_percent_of_the_intervals_hold_the_truth() -> None:
    """Clusters of very different size, as pictures with one or many questions."""
    random = np.random.default_rng(7)
    held = 0
    for experiment in range(400):
        sizes = random.integers(1, 12, 60)
        effects = random.normal(10.0, 2.0, 60)  # of a picture, the same for all its questions
        sums = np.array(
            [random.normal(e, 1.0, n).sum() for e, n in zip(effects, sizes, strict=True)]
        )
        weights = draw_weights(60, 300, seed=experiment)
        draws = ratio_draws(weights, sums[:, None], sizes[:, None].astype(float))
        (low,), (high,) = percentile_interval(draws)
        held += low <= 10.0 <= high
    assert 0.90 <= held / 400 <= 0.98
