import math

import pandas as pd
import pytest

from normprobe.report.ratio_words import (
    Estimate,
    Ratio,
    brackets,
    factor,
    ratio_in_words,
    ratios_by_layer,
    spanned,
    times,
    usable,
)
from normprobe.tidy import select


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (Ratio(57.2), "57 x as large as that of text"),
        (Ratio(57.2, 49.1, 66), "57 x [49, 66] as large as that of text"),
        (Ratio(0.5, 0.4, 0.625), "2.00 x [1.60, 2.50] smaller than that of text"),
        (Ratio(1.2, 1.1, 1.3), "1.20 x [1.10, 1.30] as large as that of text"),
        (Ratio(1.01, 0.97, 1.05), "about the same as that of text (1.01 x [0.97, 1.05])"),
        # Far from 1, and yet inconclusive.
        (Ratio(40, 0.9, 200), "inconclusive against that of text (40 x [0.90, 200])"),
        (Ratio(1.3, 0.4, 3), "inconclusive against that of text (1.30 x [0.40, 3.00])"),
        (Ratio(0.02, 0.01, 1), "inconclusive against that of text (0.020 x [0.010, 1.00])"),
        # An end that is printed as 1 holds 1.
        (Ratio(1.25, 1.004, 1.6), "inconclusive against that of text (1.25 x [1.00, 1.60])"),
        (Ratio(99.6, 99, 99.8), "100 x [99, 100] as large as that of text"),
    ],
)
def test_a_ratio_is_told_with_its_interval(ratio, words):
    assert ratio_in_words(ratio, than="that of text") == words


def test_several_ratios_are_told_by_the_smallest_and_the_largest():
    layers = {3: Ratio(8, 7, 9), 4: Ratio(2, 1.5, 3)}
    assert spanned(layers) == "2.0 to 8.0 x [7.0, 9.0] (layer 3)"
    assert (
        spanned({1: Ratio(0.2, 0.1, 0.25), 2: Ratio(0.5)}) == "2.0 to 5.0 x [4.0, 10.0] (layer 1)"
    )
    assert spanned({1: Ratio(2.04), 2: Ratio(2.01)}) == "2.0 x"
    assert factor([*layers.values()]) == "2.00 to 8.00 x [1.50, 9.00]"
    assert factor([*layers.values()], ends=False) == "2.0 to 8.0 x"


def test_nothing_follows_where_it_is_known_what_is_compared():
    assert ratio_in_words(Ratio(1.0)) == "about the same (1.00 x)"
    assert ratio_in_words(Ratio(0.25)) == "4.0 x smaller"


@pytest.mark.parametrize(
    ("ratio", "state"),
    [
        (Ratio(1.26), 1),
        (Ratio(1.25), 0),
        (Ratio(0.8), 0),
        (Ratio(0.79), -1),
        (Ratio(1.24, 1.2, 1.3), 1),
        (Ratio(1.2, 1.1, 1.25), 0),
        (Ratio(1.2, 1.1, 1.27), 1),
        (Ratio(1.25, 1.006, 2), 1),
        (Ratio(1.25, 1.004, 2), None),
        (Ratio(1.25, 1, 2), None),
        (Ratio(0.8, 0.5, 1), None),
        (Ratio(0.8, 0.5, 0.99), -1),
        (Ratio(40, 0.9, 200), None),
        (Ratio(0.02, 0, 0.5), -1),
        (Ratio(3, 2, math.inf), 1),
    ],
)
def test_a_ratio_differs_is_equal_or_is_inconclusive(ratio, state):
    assert ratio.state == state
    assert ratio.inverse.state == (None if state is None else -state)


@pytest.mark.parametrize(
    ("ratio", "size"),
    [
        (Ratio(2, 1.5, 3), (2, 1.5, 3)),
        (Ratio(0.25, 0.2, 0.5), (4, 2, 5)),
        (Ratio(1.1, 0.5, 1.5), (1.1, 1, 2)),
        (Ratio(0.8, 0.5, 4), (1.25, 1, 4)),
        (Ratio(0.5), (2, math.nan, math.nan)),
    ],
)
def test_the_size_of_a_disparity_is_the_same_both_ways(ratio, size):
    found = ratio.size
    assert (found.value, found.low, found.high) == pytest.approx(size, nan_ok=True)


def test_an_end_at_zero_has_no_end_the_other_way_round():
    assert ratio_in_words(Ratio(0.1, 0, 0.5)) == "10 x [2.0, inf] smaller"


@pytest.mark.parametrize(
    ("low", "high", "sign"),
    [(0.1, 2, 1), (-2, -0.1, -1), (-1, 2, None), (0, 2, None), (-2, 0, None)],
)
def test_an_interval_has_a_sign_where_it_lies_on_one_side_of_0(low, high, sign):
    assert Estimate((low + high) / 2, low, high).sign == sign


def test_where_other_layers_have_bands_one_without_could_be_anything():
    rows = pd.DataFrame({"layer": [2, 1], "quantity": "ratio", "mean": [3.0, 2.0]})
    rows = rows.assign(band_low=[math.nan, 1.5], band_high=[math.nan, 2.5])
    found = ratios_by_layer(select(rows, "ratio"))
    assert found == {1: Ratio(2, 1.5, 2.5), 2: Ratio(3, 0, math.inf)}
    (alone,) = ratios_by_layer(select(rows[:1], "ratio")).values()  # of one image nothing is known
    assert not alone.has_interval


def test_brackets_are_explained_and_their_absence_too():
    assert brackets([Ratio(2), Ratio(3, 2, 4)], 9) == "[ ]: 95 % interval (bootstrap over images)."
    assert brackets([Ratio(3, 2, 4)], 9, "layers") == (
        "[ ]: 95 % interval (bootstrap over images, simultaneous over layers)."
    )
    assert brackets([Ratio(2)], 1) == "One sample, no intervals."
    assert brackets([Ratio(2)], 5) == "One image, no intervals."


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.987, "1.99 x"), (1.999, "2.0 x"), (2, "2.0 x"), (99.4, "99 x"), (4052, "4052 x")],
)
def test_two_decimals_below_2_one_below_10_then_none(ratio, text):
    assert times(ratio) == text


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_what_has_no_ratio(value):
    assert not usable(value)
    assert not Ratio(value).usable
    assert usable(1e-9)
