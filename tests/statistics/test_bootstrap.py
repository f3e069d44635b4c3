"""Intervals and bands against loops in float64, tables of Student's t, and what they promise."""

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
from support.slow_bands import half_widths_by_hand, quantile_by_hand

from normprobe.statistics.bootstrap import (
    FISHER,
    LINEAR,
    LOGARITHM,
    LOGIT,
    MOST_LEFT_OUT,
    Scale,
    band,
    draw_weights,
    interval,
    left_out,
    ratio_draws,
    student_t,
)

# --- draws --------------------------------------------------------------------------------------


def test_draws_are_with_replacement_and_seeded() -> None:
    weights = draw_weights(30, 500, seed=3)
    assert weights.shape == (1 + 30 + 500, 30)
    assert (weights == draw_weights(30, 500, seed=3)).all()
    assert (weights != draw_weights(30, 500, seed=4)).any()
    random = weights[31:]
    assert (random.sum(axis=1) == 30).all()
    # A unit is left out of a draw with probability (1 - 1/n)^n.
    assert (random == 0).mean() == pytest.approx((1 - 1 / 30) ** 30, abs=0.01)


def test_the_images_as_they_are_come_first_then_each_is_left_out() -> None:
    weights = draw_weights(5, 2)
    assert (weights[0] == 1).all()
    for unit in range(5):
        expected = [0.0 if other == unit else 1.0 for other in range(5)]
        assert weights[1 + unit].tolist() == expected


def test_of_many_images_groups_are_left_out() -> None:
    units = 2 * MOST_LEFT_OUT + 7
    without = draw_weights(units, 0)[1:]
    assert left_out(units) == MOST_LEFT_OUT == len(without)
    # Each image is left out once, and the groups are of two or three.
    assert ((without == 0).sum(axis=0) == 1).all()
    assert set((without == 0).sum(axis=1)) == {2, 3}


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


# --- Student's t --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("freedom", "below", "expected"),
    [  # of printed tables
        (1, 0.975, 12.706),
        (1, 0.95, 6.314),
        (2, 0.975, 4.303),
        (3, 0.99, 4.541),
        (4, 0.975, 2.776),
        (4, 0.995, 4.604),
        (9, 0.975, 2.262),
        (10, 0.9995, 4.587),
        (19, 0.975, 2.093),
        (29, 0.75, 0.683),
        (120, 0.975, 1.980),
    ],
)
def test_quantiles_of_t_are_those_of_the_tables(
    freedom: int, below: float, expected: float
) -> None:
    assert student_t(freedom, below) == pytest.approx(expected, abs=6e-4)


def test_t_is_zero_in_the_middle_and_normal_in_the_end() -> None:
    assert student_t(7, 0.5) == pytest.approx(0.0, abs=1e-9)
    assert student_t(100_000, 0.975) == pytest.approx(NormalDist().inv_cdf(0.975), abs=1e-4)


# --- intervals ----------------------------------------------------------------------------------


def interval_by_hand(
    draws: list[float], left: int, units: int, forward: Callable, back: Callable
) -> tuple[float, float]:
    """One cell; ``draws`` begin with the estimate and ``left`` draws without images."""
    estimate = forward(draws[0])
    turned = [forward(draw) for draw in draws[1 + left :] if not math.isnan(draw)]
    factor = student_t(units - 1, 0.975) / 1.959963984540054 * math.sqrt(units / (units - 1))
    ends = []
    for share in (0.025, 0.975):
        ends.append(back(estimate + (quantile_by_hand(turned, share) - estimate) * factor))
    return ends[0], ends[1]


def drawn_of(make: Callable[[np.random.Generator, int], np.ndarray], units: int) -> np.ndarray:
    """All draws of the mean of five cells."""
    values = make(np.random.default_rng(units), units)
    return ratio_draws(draw_weights(units, 300), values, np.ones_like(values))


SCALES = {
    "linear": (LINEAR, lambda x: x, lambda x: x, lambda r, n: r.normal(2, 3, (n, 5))),
    "logarithm": (LOGARITHM, math.log, math.exp, lambda r, n: r.lognormal(1, 0.7, (n, 5))),
    "Fisher": (FISHER, math.atanh, math.tanh, lambda r, n: r.uniform(-0.2, 0.99, (n, 5))),
    "logit": (
        LOGIT,
        lambda x: math.log(x / (1 - x)),
        lambda x: 1 / (1 + math.exp(-x)),
        lambda r, n: r.uniform(0.01, 0.3, (n, 5)),
    ),
}


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("units", [2, 3, 10, 50, 450])
def test_intervals_are_percentiles_on_their_scale_widened_by_t(name: str, units: int) -> None:
    scale, forward, back, make = SCALES[name]
    drawn = drawn_of(make, units)
    drawn[-3, 1] = np.nan  # a draw without the cell has no say
    found = interval(drawn, units, scale)
    left = min(units, 200)
    for cell in range(5):
        expected = interval_by_hand(drawn[:, cell].tolist(), left, units, forward, back)
        np.testing.assert_allclose(found[:, cell], expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("scale", "value"),
    [(LOGARITHM, 0.0), (LOGARITHM, -0.5), (FISHER, 1.0), (FISHER, -1.0), (LOGIT, 0.0), (LOGIT, 1)],
)
def test_where_the_scale_has_no_place_for_a_draw_they_are_widened_as_they_are(
    scale: Scale, value: float
) -> None:
    drawn = drawn_of(lambda random, units: random.uniform(0.1, 0.9, (units, 2)), 10)
    on_it = interval(drawn, 10, scale)
    drawn[40, 0] = value
    ends = interval_by_hand(drawn[:, 0].tolist(), 10, 10, float, float)
    found = interval(drawn, 10, scale)
    np.testing.assert_allclose(found[:, 0], np.clip(ends, scale.least, scale.most), rtol=1e-9)
    np.testing.assert_array_equal(found[:, 1], on_it[:, 1])  # the other cell stays on its scale


@pytest.mark.parametrize(
    ("scale", "value"), [(LOGARITHM, 0.0), (FISHER, 1.0), (LOGIT, 0.0), (LOGIT, 1.0), (LINEAR, 3.0)]
)
def test_draws_that_are_all_one_number_have_that_as_their_interval(
    scale: Scale, value: float
) -> None:
    found = interval(np.full((1 + 10 + 300, 1), value), 10, scale)
    assert found.ravel().tolist() == [value, value]


def test_ends_stay_where_the_quantity_can_be() -> None:
    random = np.random.default_rng(0)
    drawn = random.uniform(0.0, 1.0, (1 + 5 + 300, 1))
    drawn[7] = 0.0  # off the logarithm: on the line the lower end would be below zero
    assert interval(drawn, 5, LINEAR)[0, 0] < 0 < 1 < interval(drawn, 5, LINEAR)[1, 0]
    assert interval(drawn, 5, LOGIT).ravel().tolist() == [0.0, 1.0]
    assert interval(drawn, 5, LOGARITHM)[0, 0] == 0.0


def test_one_image_has_no_interval_and_no_band() -> None:
    drawn = ratio_draws(draw_weights(1), np.ones((1, 2)), np.ones((1, 2)))
    assert np.isnan(interval(drawn, 1, LINEAR)).all()
    assert np.isnan(band([drawn], 1, [LINEAR])[0]).all()


def test_a_cell_that_one_image_holds_has_none_and_few_widen_it() -> None:
    drawn = drawn_of(SCALES["linear"][3], 10)
    found = interval(drawn, 10, LINEAR, np.array([10, 1, 0, 3, 10]))
    assert np.isnan(found[:, [1, 2]]).all()
    of_ten = interval(drawn, 10, LINEAR)
    np.testing.assert_array_equal(found[:, [0, 4]], of_ten[:, [0, 4]])
    few, all_ten = found[1, 3] - drawn[0, 3], of_ten[1, 3] - drawn[0, 3]
    factors = [student_t(n - 1, 0.975) * math.sqrt(n / (n - 1)) for n in (3, 10)]
    assert few / all_ten == pytest.approx(factors[0] / factors[1], rel=1e-12)


def test_a_number_that_is_not_known_has_none() -> None:
    drawn = drawn_of(SCALES["linear"][3], 10)
    drawn[:, 2] = np.nan
    drawn[0, 3] = np.nan  # the estimate itself
    found = interval(drawn, 10, LINEAR)
    assert np.isnan(found[:, [2, 3]]).all()
    assert np.isfinite(found[:, [0, 1, 4]]).all()


# --- bands --------------------------------------------------------------------------------------


def band_by_hand(
    cells: list[list[float]], holds: list[list[bool]], turns: list[tuple]
) -> list[list[float]]:
    """Each cell as it is and without each group in turn; ``turns``: its scale and the way back."""
    turned = [
        [forward(value) for value in cell[: 1 + len(held)]]
        for cell, held, (forward, _) in zip(cells, holds, turns, strict=True)
    ]
    shares = []
    for cell in turned:
        mean = sum(cell[1:]) / len(cell[1:])
        shares.append([mean - without for without in cell[1:]])
    reaches = half_widths_by_hand(shares, holds)
    return [
        [back(cell[0] - reach), back(cell[0] + reach)]
        for cell, reach, (_, back) in zip(turned, reaches, turns, strict=True)
    ]


def means_without_each(values: np.ndarray, held: np.ndarray | None = None) -> np.ndarray:
    """Means over the images that hold each cell, as they are and without each in turn."""
    counts = np.ones_like(values) if held is None else held.astype(float)
    return ratio_draws(draw_weights(len(values), 0), values * counts, counts)


@pytest.mark.parametrize("units", [2, 3, 4, 5, 6, 12, 230])
def test_bands_over_statistics_of_two_scales(units: int) -> None:
    random = np.random.default_rng(units)
    tokens = random.integers(1, 30, (units, 3)).astype(float)  # images count unequally
    drawn = [
        ratio_draws(draw_weights(units, 9), values * tokens, tokens)
        for values in (random.normal(0, 2, (units, 3)), random.lognormal(0, 0.5, (units, 3)))
    ]
    found = np.hstack(band(drawn, units, [LINEAR, LOGARITHM])).T
    cells = np.hstack(drawn).T.tolist()
    turns = [(float, float)] * 3 + [(math.log, math.exp)] * 3
    expected = band_by_hand(cells, [[True] * min(units, MOST_LEFT_OUT)] * 6, turns)
    np.testing.assert_allclose(found, expected, rtol=1e-7)


@pytest.mark.parametrize("units", [9, 25])
def test_cells_that_other_images_hold_part_the_errors(units: int) -> None:
    """Four cells that all hold, two that most do, one that three do, one that one does."""
    random = np.random.default_rng(units)
    held = np.ones((units, 8), dtype=bool)
    held[0, 4:6], held[3:, 6], held[1:, 7] = False, False, False
    drawn = means_without_each(random.lognormal(0, 1, (units, 8)), held)
    (found,) = band([drawn], units, [LINEAR], [held])
    expected = band_by_hand(drawn.T[:7].tolist(), held.T[:7].tolist(), [(float, float)] * 7)
    np.testing.assert_allclose(found.T[:7], expected, rtol=1e-7)
    assert np.isnan(found[:, 7]).all()


def test_of_groups_of_images_one_holds_what_any_of_its_images_does() -> None:
    units = MOST_LEFT_OUT + 6
    values = np.random.default_rng(0).normal(size=(units, 3))
    held = np.arange(units)[:, None] % MOST_LEFT_OUT < np.array([4, 9, 200])
    drawn = means_without_each(values, held)
    (expected,) = band([drawn], units, [LINEAR], [held])
    assert len(set(np.diff(expected, axis=0).ravel())) == 3
    held[:4, 0] = False  # the others of their groups still do
    np.testing.assert_array_equal(band([drawn], units, [LINEAR], [held])[0], expected)


def test_images_without_a_number_change_no_band_of_it() -> None:
    """Prompts without a picture are no images of what visual tokens are."""
    random = np.random.default_rng(0)
    values, prompts = random.lognormal(0, 1, (6, 4)), np.zeros((30, 4))
    held = np.arange(36)[:, None] < np.full(4, 6)
    (alone,) = band([means_without_each(values)], 6, [LINEAR])
    drawn = means_without_each(np.vstack([values, prompts]), held)
    np.testing.assert_allclose(band([drawn], 36, [LINEAR], [held])[0], alone, rtol=1e-12)


def test_of_few_images_a_band_is_that_of_bonferroni() -> None:
    values = np.array([[1.0, -1.0, 1.0, -1.0]]).T @ np.ones((1, 8)) + np.arange(8.0)
    (found,) = band([means_without_each(values)], 4, [LINEAR])
    standard_error = math.sqrt(4 / 3) / 2
    reach = student_t(3, 1 - 0.05 / 16) * math.sqrt(4 / 3) * standard_error
    np.testing.assert_allclose(found, [np.arange(8) - reach, np.arange(8) + reach], rtol=1e-9)


def named(values: np.ndarray, held: np.ndarray | None = None) -> bool:
    """Whether the band of any cell excludes 0."""
    drawn = means_without_each(values, held)
    low, high = band([drawn], len(values), [LINEAR], None if held is None else [held])[0]
    return bool(((low > 0) | (high < 0)).any())


@pytest.mark.parametrize("spread", [0.5, 0.75])  # skewness 1.75 and 3.3
def test_skewed_images_name_no_layer_by_chance(spread: float) -> None:
    """20 images, 32 layers: by random signs 23 and 51 of 100 such data sets named one."""
    random = np.random.default_rng(0)
    sets = np.exp(spread * random.normal(size=(100, 20, 32))) - math.exp(spread**2 / 2)
    assert sum(map(named, sets)) <= 9


@pytest.mark.parametrize("images", [3, 5, 10])
def test_prompts_without_a_picture_name_no_layer_by_chance(images: int) -> None:
    """Of three images beside eight prompts, 26 of 100 such data sets named one of 32 layers."""
    random = np.random.default_rng(0)
    held = np.arange(images + 8)[:, None] < np.full(32, images)
    sets = random.normal(size=(100, images + 8, 32))
    assert sum(named(values, held) for values in sets) <= 9


def test_an_effect_is_found_as_often_as_by_the_largest_t_that_is_known() -> None:
    """20 normal images, 32 layers of a residual stream: the largest |t| of 2000 data sets."""
    random = np.random.default_rng(0)

    def t_of(values: np.ndarray) -> np.ndarray:
        return values.mean(axis=0) / values.std(axis=0, ddof=1) * math.sqrt(len(values))

    def made(sets: int) -> np.ndarray:
        return random.normal(size=(sets, 20, 32)).cumsum(axis=-1) / np.sqrt(np.arange(32) + 1)

    reach = np.quantile([np.abs(t_of(values)).max() for values in made(2000)], 0.95)
    effects = made(150)
    effects[:, :, 16] += 1.0  # in deviations between images
    found = 0
    for values in effects:
        low, _ = band([means_without_each(values)], 20, [LINEAR])[0]
        found += low[16] > 0
    best = sum(t_of(values)[16] > reach for values in effects)
    assert best >= 120 and found >= best - 8


def test_an_image_that_holds_most_of_the_deviation_widens_the_band() -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=(12, 40))
    outlying = values * np.where(np.arange(12) == 3, 8.0, 1.0)[:, None]
    reaches = []
    for made in (values, outlying):
        ends = band([means_without_each(made)], 12, [LINEAR])[0]
        errors = made.std(axis=0, ddof=1) / math.sqrt(12)
        reaches.append(((ends[1] - ends[0]) / 2 / errors).mean())
    assert reaches[1] > 1.2 * reaches[0]


def test_a_layer_with_one_loud_image_widens_the_band_of_no_other() -> None:
    values = np.random.default_rng(0).normal(size=(12, 40))
    loud = values.copy()
    loud[3, 7] += 50.0
    widths = [
        np.diff(band([means_without_each(v)], 12, [LINEAR])[0], axis=0) for v in (values, loud)
    ]
    others = np.arange(40) != 7
    assert (widths[1] / widths[0])[0, others].max() < 1.1
    assert (widths[1] / widths[0])[0, 7] > 5


@pytest.mark.parametrize("units", [5, 20, 250])
def test_more_cells_make_no_band_narrower(units: int) -> None:
    random = np.random.default_rng(1)
    values = random.normal(size=(units, 60))
    drawn = ratio_draws(draw_weights(units, 0), values, np.ones_like(values))
    reaches = []
    for cells in (1, 4, 16, 60):
        low, high = band([drawn[:, :cells]], units, [LINEAR])[0]
        reaches.append(high[0] - low[0])
    assert min(reaches) == reaches[0] and reaches[-1] > 1.3 * reaches[0]


def test_a_cell_that_an_image_lacks_has_no_band_and_changes_no_other() -> None:
    random = np.random.default_rng(2)
    values, held = random.normal(size=(10, 4)), np.ones((10, 4))
    values[1:, 2], held[1:, 2] = 0.0, 0.0  # in one image alone: without it there is nothing
    drawn = ratio_draws(draw_weights(10, 0), values, held)
    drawn[0, 3] = np.nan
    found = band([drawn], 10, [LINEAR])[0]
    alone = band([drawn[:, :2]], 10, [LINEAR])[0]
    np.testing.assert_array_equal(found[:, :2], alone)
    assert np.isnan(found[:, 3]).all()


def test_numbers_that_no_image_changes_are_their_own_band() -> None:
    drawn = np.full((11, 2), 3.0)
    np.testing.assert_array_equal(band([drawn], 10, [LINEAR])[0], np.full((2, 2), 3.0))
    assert [found.shape for found in band([np.empty((11, 0))], 10, [LINEAR])] == [(2, 0)]


def test_images_that_are_all_as_far_apart_have_a_band() -> None:
    """Then some draws have images of one kind alone, and leave no deviation."""
    random = np.random.default_rng(0)
    values = random.choice([0.0, 1.0], size=(8, 40))
    drawn = ratio_draws(draw_weights(8, 0), values, np.ones_like(values))
    found = band([drawn], 8, [LINEAR])[0]
    assert np.isfinite(found).all()
    assert (np.diff(found, axis=0) < 5).all()


def test_bands_stay_where_the_quantity_can_be() -> None:
    random = np.random.default_rng(0)
    values = random.uniform(0.6, 1.0, (3, 4))
    drawn = ratio_draws(draw_weights(3, 0), values, np.ones_like(values))
    low, high = band([drawn], 3, [FISHER])[0]
    assert (low >= -1).all() and (high <= 1).all() and (low < high).all()
    low, high = band([drawn], 3, [LOGARITHM])[0]
    assert (low >= 0).all()
