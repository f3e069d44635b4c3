"""How near is near enough."""

from collections.abc import Mapping

import pytest

TOLERANCE = 1e-4

#: Cosines and angles: absolute tolerance. Everything else: relative.
BOUNDED = ("cosine", "angle", "update_angle", "pooled_cosine")


def assert_agrees(found: Mapping[str, float], expected: Mapping[str, float], where: object) -> None:
    """Every expected number is there and agrees. Failures name all columns that do not."""
    wrong = {
        column: (found[column], value)
        for column, value in expected.items()
        if found[column] != about(column, value)
    }
    assert not wrong, f"{where}: (found, expected) {wrong}"


def about(column: str, value: float) -> object:
    """What a column may hold."""
    if column in ("hidden_size", "tokens", "samples", "nonfinite"):
        return value
    if column.startswith(BOUNDED):
        return pytest.approx(value, rel=0.0, abs=TOLERANCE)
    # A deviation of equal values is a rounding error, not a number with relative accuracy.
    return pytest.approx(value, rel=TOLERANCE, abs=1e-6)
