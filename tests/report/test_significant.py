import math

import numpy as np
import pytest

from normprobe.report.readable import count, of_one_size, significant


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (16.53, "16.53"),
        (0.2911, "0.2911"),
        (0.0316, "0.03160"),
        (9.99996, "10.00"),
        (3484.24, "3484"),
        (12345.6, "12350"),
        (123456.0, "1.235e5"),
        (0.000123456, "1.235e-4"),
        (-2.5, "-2.500"),
        (0.0, "0"),
        (math.nan, "-"),
        (math.inf, "inf"),
    ],
)
def test_four_digits(value, text):
    assert significant(value) == text


def test_never_wider_than_eight_characters():
    assert max(len(significant(v)) for v in np.geomspace(1e-9, 1e9, 999)) <= 8


@pytest.mark.parametrize(
    ("value", "text"),
    [(56, "56"), (999999, "999999"), (2.88e6, "2.880M"), (3.1e9, "3.100G"), (math.nan, "-")],
)
def test_counts(value, text):
    assert count(value) == text


@pytest.mark.parametrize(
    ("numbers", "texts"),
    [
        ((-0.2, -0.3, -0.05), ["-0.200", "-0.300", "-0.050"]),
        ((0.012, 0.0096, 0.014), ["0.0120", "0.0096", "0.0140"]),
        ((0.12, 0.0, 0.4), ["0.12", "0", "0.40"]),
        ((0.5, 0.01, 2.0), ["0.50", "0.010", "2.0"]),  # not of one size
        ((1e-5, 2e-5, 3e-5), ["1.0e-5", "2.0e-5", "3.0e-5"]),
        ((-0.0, 0.0, 0.0), ["0", "0", "0"]),
        ((1.5, math.nan, math.nan), ["1.5", "-", "-"]),
    ],
)
def test_numbers_of_one_size_have_the_same_decimals(numbers, texts):
    assert of_one_size(numbers) == texts
