"""Cosines over pairs of a few tokens in the plane, by hand."""

import numpy as np
import pytest

from normprobe.measurements.layers import all_pairs

ROOT = np.sqrt(0.5)
RIGHT, UP, DIAGONAL = [2.0, 0.0], [0.0, 3.0], [5.0, 5.0]
NONE, LOST = [0.0, 0.0], [np.inf, 1.0]


def tokens(*rows: list[float]) -> np.ndarray:
    return np.array(rows)


def test_within() -> None:
    assert all_pairs.within(tokens(RIGHT, UP, DIAGONAL)) == pytest.approx(2 * ROOT / 3)
    assert all_pairs.within(tokens(RIGHT, NONE, DIAGONAL, LOST)) == pytest.approx(ROOT)
    assert np.isnan(all_pairs.within(tokens(RIGHT, NONE)))


def test_crossed() -> None:
    visual, text = tokens(RIGHT, NONE, UP, LOST), tokens(DIAGONAL, RIGHT)
    assert all_pairs.crossed(visual, text) == pytest.approx((2 * ROOT + 1) / 4)
    assert np.isnan(all_pairs.crossed(tokens(NONE), text))


def test_centered_bundles_are_opposite() -> None:
    found = all_pairs.crossed_and_centered(tokens(RIGHT, RIGHT), tokens(UP, NONE))
    assert found == pytest.approx(-1.0)


def test_mean_direction() -> None:
    mean = all_pairs.mean_direction(tokens(RIGHT, [0.0, 2.0], LOST))
    np.testing.assert_allclose(mean, [ROOT, ROOT])


def test_turns() -> None:
    x = tokens(RIGHT, NONE, RIGHT), tokens(UP)
    h = tokens([4.0, 7.0], UP, [9.0, 0.0]), tokens([-3.0, 1.0])
    # Visual: the first turns up, the second has no x, the third does not turn. Text turns left.
    assert all_pairs.turns(x, h) == pytest.approx([0.5, -1.0, 0.0])
