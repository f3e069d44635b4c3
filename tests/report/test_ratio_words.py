import math

import pytest

from normprobe.report.ratio_words import direction, loudness, times, usable


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (57.2, "57 x louder than"),
        (1 / 2, "2.0 x quieter than"),
        (1.2, "about as loud as"),
        (1 / 1.2, "about as loud as"),
    ],
)
def test_loudness(ratio, words):
    assert loudness(ratio) == words
    assert loudness(ratio, short=True) == words.rpartition(" ")[0]


@pytest.mark.parametrize(("ratio", "way"), [(1.25, 1), (1.24, 0), (0.81, 0), (0.8, -1)])
def test_a_quarter_more_is_a_difference(ratio, way):
    assert direction(ratio) == way


@pytest.mark.parametrize(("ratio", "text"), [(2, "2.0 x"), (99.4, "99 x"), (4052, "4050 x")])
def test_two_digits_three_from_a_hundred_on(ratio, text):
    assert times(ratio) == text


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_what_has_no_ratio(value):
    assert not usable(value)
    assert usable(1e-9)
