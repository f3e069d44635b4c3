"""How far two ways to the same numbers are apart."""

import pandas as pd
import pytest
import torch

from normprobe.statistics.agreement import ROWS, TOKENS, in_doubt, largest_difference

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("measured", "recomputed", "relative", "expected"),
    [
        ({"a": 1.1, "b": 20.0}, {"a": 1.0, "b": 20.5}, False, 0.5),
        ({"a": 1.1, "b": 20.0}, {"b": 20.5, "a": 1.0}, True, 0.1),
        ({"a": 0.25}, {"a": 0.0}, True, 0.25),
        ({"a": -1.1}, {"a": -1.0}, True, 0.1),
        ({"a": 1.0, "b": 9.0}, {"a": 1.0}, True, 0.0),
        ({"a": 1.0, "b": 9.0}, {"a": 1.0, "b": NAN}, True, 0.0),
        ({"a": 1.0}, {"a": 1.0, "b": 1.0}, True, INF),
        ({"a": NAN}, {"a": 1.0}, True, INF),
        ({"a": INF}, {"a": 1.0}, False, INF),
    ],
)
def test_largest_difference(
    measured: dict[str, float], recomputed: dict[str, float], relative: bool, expected: float
) -> None:
    found = largest_difference(pd.Series(measured), pd.Series(recomputed), relative=relative)
    assert found == pytest.approx(expected)


def test_rounding_is_no_doubt_and_a_count_is() -> None:
    found = {"norm": 1e-3, "cosine": 1e-9, TOKENS: 1.0, ROWS: 0.0, "angle": INF, "gone": "why"}
    assert in_doubt(found, torch.float32) == ["norm", TOKENS, "angle"]
    assert in_doubt(found, torch.float64) == ["norm", TOKENS, "angle"]
    assert in_doubt(found, torch.bfloat16) == [TOKENS, "angle"]
    assert in_doubt({"norm": NAN}, torch.bfloat16) == ["norm"]
