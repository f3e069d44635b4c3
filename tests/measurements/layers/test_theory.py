"""Eq. 15-17 against a direct computation, one sample at a time."""

import numpy as np
import pandas as pd
import pytest

from normprobe.measurements.layers.theory import theory_table

COSINES = {"visual": [0.99, 0.98, 0.97], "text": [0.5, 0.8, 0.9]}


def rows(
    visual: list[float], text: list[float], initial: float = 0.4, injected: int | None = None
) -> pd.DataFrame:
    made = []
    for group, cosines in (("visual", visual), ("text", text)):
        made.append({"layer": 0, "group": group, "norm_mean": 1.0})
        for layer, cosine in enumerate(cosines, start=1):
            made.append(
                {
                    "layer": layer,
                    "group": group,
                    "cosine_mean": cosine,
                    "update_norm_mean": 2.0 if group == "visual" else 4.0,
                    "update_angle_mean": 1.5,
                }
            )
    for layer in range(len(visual) + 1):
        made.append(
            {
                "layer": layer,
                "group": "visual_text",
                "cross_modal_cosine": initial * 0.5**layer,
                "injected": layer == injected,
                "visual_turn_to_text": 0.01 if layer else np.nan,
                "text_turn_to_visual": 0.02 if layer else np.nan,
            }
        )
    return pd.DataFrame(made).assign(sample_id="a", hidden_size=64)


def test_the_prediction_is_the_running_product_of_retentions() -> None:
    table = theory_table(rows(COSINES["visual"], COSINES["text"])).set_index("layer")
    retention = np.multiply(COSINES["visual"], COSINES["text"])
    np.testing.assert_allclose(table["retention_mean"].iloc[1:], retention)
    np.testing.assert_allclose(
        table["predicted_cross_modal_cosine_mean"], 0.4 * np.cumprod([1.0, *retention])
    )
    assert table.loc[2, "cross_modal_cosine_mean"] == pytest.approx(0.1)
    assert table.loc[1, "update_norm_ratio_mean"] == pytest.approx(0.5)


def test_the_lag_is_measured_against_equal_turning() -> None:
    table = theory_table(rows(COSINES["visual"], COSINES["text"])).set_index("layer")
    imbalanced = balanced = 0.4
    for layer, (v, t) in enumerate(zip(COSINES["visual"], COSINES["text"], strict=True), start=1):
        both = np.arctan(np.sqrt(np.tan(np.arccos(v)) * np.tan(np.arccos(t))))
        imbalanced *= v * t
        balanced *= np.cos(both) ** 2
        expected = np.arccos(imbalanced) - np.arccos(balanced)
        assert table.loc[layer, "lag_angle_mean"] == pytest.approx(expected, rel=1e-9)
        assert expected > 0


def test_equal_turning_has_no_lag() -> None:
    table = theory_table(rows([0.9, 0.8], [0.9, 0.8]))
    np.testing.assert_allclose(table["lag_angle_mean"], 0.0, atol=1e-7)


def test_an_injection_of_visual_features_ends_the_prediction() -> None:
    table = theory_table(rows(COSINES["visual"], COSINES["text"], injected=2)).set_index("layer")
    assert table["predicted_cross_modal_cosine_mean"].notna().tolist() == [True, True, False, False]
    assert table["cross_modal_cosine_mean"].notna().all()


@pytest.mark.parametrize(
    ("visual", "text", "initial"), [([0.9, 0.9], [-0.1, 0.9], 0.4), ([0.9], [0.9], -0.1)]
)
def test_the_lag_is_empty_where_the_theory_does_not_speak(
    visual: list[float], text: list[float], initial: float
) -> None:
    table = theory_table(rows(visual, text, initial))
    assert table["lag_angle_mean"].iloc[1:].isna().all()
    assert (table["lag_angle_samples"].iloc[1:] == 0).all()
    assert table["predicted_cross_modal_cosine_mean"].notna().all()


def test_samples_without_both_modalities_have_no_say() -> None:
    lonely = rows([0.9], [0.9])
    lonely = lonely[lonely["group"] == "text"].assign(sample_id="b")
    both = rows(COSINES["visual"], COSINES["text"])
    together = theory_table(pd.concat([both, lonely], ignore_index=True))
    pd.testing.assert_frame_equal(together, theory_table(both))
    assert theory_table(lonely).empty
