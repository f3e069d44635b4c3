"""Eq. 13-15 in a world that does what Section 3.1 assumes, measured as a model is.

Then the measured cross-modal cosine is that of Eq. 15 up to sampling error.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from experiments.theory import FAITHFUL, INITIAL, LAYERS, SAMPLES, TOKENS, WIDTH, simulated
from normprobe.measurements.layers.table import layers_table
from normprobe.measurements.layers.theory import theory_table
from normprobe.schema import TEXT, VISUAL

EXACT = replace(FAITHFUL, norm_spread=0.0, size_spread=0.0, angle_spread=0.0)
SIZE, ANGLE = EXACT.size[0], EXACT.angle[0]
NORMS = dict(zip((VISUAL, TEXT), EXACT.norm, strict=True))


@pytest.fixture(scope="module")
def exact() -> pd.DataFrame:
    return theory_table(simulated(EXACT, 0)).set_index("layer")


def predicted_by_hand() -> list[float]:
    """Eq. 13, 15 and 16 from the parameters alone."""
    cosine, now, predictions = INITIAL, dict(NORMS), [INITIAL]
    for _ in range(LAYERS):
        for group, norm in now.items():
            along, across = norm + SIZE * np.cos(ANGLE), SIZE * np.sin(ANGLE)
            cosine *= np.cos(np.arctan2(across, along))
            now[group] = float(np.hypot(along, across))
        predictions.append(cosine)
    return predictions


def test_eq_15_follows_the_parameters_and_the_measurement(exact: pd.DataFrame) -> None:
    by_hand = predicted_by_hand()
    # One cosine of random directions deviates by 1 / sqrt(WIDTH); these are means of many.
    error = 3 / np.sqrt(WIDTH * min(TOKENS, SAMPLES))
    for name in ("cross_modal", "compounded_cross_modal"):
        np.testing.assert_allclose(exact[f"{name}_cosine_mean"], by_hand, atol=error)
    one_step = exact["predicted_cross_modal_cosine_mean"].iloc[1:]
    np.testing.assert_allclose(one_step, by_hand[1:], atol=error)
    assert by_hand[-1] < 0.7 * by_hand[0]  # so that an unchanged cosine would not pass


def test_the_norms_explain_the_angles(exact: pd.DataFrame) -> None:
    for layer in range(1, LAYERS + 1):
        row = exact.loc[layer]
        assert row["angle_ratio_error"] == pytest.approx(1.0, abs=1e-3)
        assert row["update_norm_ratio"] == pytest.approx(1.0, abs=1e-5)
        assert row["update_angle_difference"] == pytest.approx(0.0, abs=1e-5)
    assert exact.loc[1, "angle_ratio"] > 3


def test_louder_tokens_turn_less_by_eq_13_and_14() -> None:
    table = layers_table(simulated(EXACT, 0)).set_index(["layer", "group"])
    for group, norm in NORMS.items():
        expected = np.arctan2(SIZE * np.sin(ANGLE), norm + SIZE * np.cos(ANGLE))
        assert table.loc[(1, group), "angle_mean"] == pytest.approx(expected, rel=1e-4)


def test_equal_norms_have_no_lag() -> None:
    table = theory_table(simulated(replace(EXACT, norm=(8.0, 8.0)), 0))
    np.testing.assert_allclose(table["lag_angle_mean"], 0.0, atol=1e-3)
    uneven = theory_table(simulated(EXACT, 0))
    assert uneven["lag_angle_mean"].iloc[-1] > 0.05
