import math

import numpy as np
import pytest

from normprobe.report.significant import count, significant


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
