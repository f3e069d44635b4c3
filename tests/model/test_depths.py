"""Layers that stand for all depths."""

import pytest

from normprobe.model.measured_model import layers_of_all_depths


@pytest.mark.parametrize(
    ("layers", "shown", "expected"),
    [(32, 4, [8, 16, 24, 32]), (6, 4, [2, 3, 4, 6]), (3, 4, [1, 2, 3]), (1, 4, [1])],
)
def test_they_are_spread_and_end_with_the_last(layers, shown, expected):
    assert layers_of_all_depths(layers, shown) == expected
