"""Each sentence at the borders of what it may say."""

import numpy as np
import pandas as pd
import pytest
from support import made_tables

from normprobe.measurements.layers.assumptions import (
    assumptions_table,
    between,
    theory_verdict,
    with_interval,
)

FAITHFUL = {
    "norm_ratio": 4.0,
    "update_norm_ratio": 1.0,
    "update_norm_cv_text": 0.1,
    "update_norm_correlation_text": 0.1,
    "update_angle_difference": 0.0,
    "update_angle_std_text": 0.05,
    "visual_turn_to_text_mean": 0.0,
    "norm_angle_correlation_text": -0.9,
    "angle_ratio_error": 1.0,
}


def said(theory: pd.DataFrame) -> str:
    return theory_verdict(theory, assumptions_table(theory))


def faithful(**changed: object) -> pd.DataFrame:
    theory = made_tables.theory(**FAITHFUL | changed)
    for end in ("", "_ci_low", "_ci_high", "_band_low", "_band_high"):
        theory[f"norm_ratio{end}"] = theory[f"norm_ratio{end}"].bfill()  # layer 0 has a norm
    return theory


def test_all_hold() -> None:
    sentence = said(faithful())
    assert sentence.startswith(
        "4 of 4 assumptions hold in every layer: Modality Norm Imbalance, Uniform Update "
        "Magnitude, Consistent Update Geometry, Random Rotational Direction, and so do Eq. 13 and "
        "Eq. 15. One layer on"
    )


def test_what_fails_is_said_for_all_layers() -> None:
    sentence = said(made_tables.theory())
    assert sentence.startswith("1 of 4 assumptions holds in every layer: Modality Norm Imbalance, ")
    assert "and so does Eq. 15. " in sentence
    assert "Uniform Update Magnitude fails in every layer; " in sentence
    assert "Random Rotational Direction holds in layers 1-2 and fails in layers 3-6; " in sentence


def test_open_layers_are_called_open() -> None:
    theory = faithful()
    theory.loc[3, ["update_norm_ratio_band_low", "update_norm_ratio_band_high"]] = 0.7, 1.3
    assert "Uniform Update Magnitude holds in layers 1-2, 4-6 and is open in layer 3." in said(
        theory
    )
    theory[["update_norm_ratio_band_low", "update_norm_ratio_band_high"]] = 0.7, 1.3
    assert "Uniform Update Magnitude is open in every layer." in said(theory)


def test_balanced_norms_do_not_fail() -> None:
    sentence = said(faithful(norm_ratio=1.0))
    assert sentence.startswith("3 of 3 assumptions hold in every layer: Uniform")
    assert "Imbalance does not apply (balanced norms, the paper's second case)." in sentence
    sentence = said(faithful(norm_ratio=[4, 4, 4, 1, 1, 1, 1]))
    assert "Imbalance holds in layers 0-2 and does not apply in layers 3-6 (balanced" in sentence


def test_quiet_visual_tokens_are_no_imbalance_of_the_papers_kind() -> None:
    assert "Modality Norm Imbalance fails in every layer." in said(faithful(norm_ratio=0.5))


def test_the_largest_miss_of_eq_15() -> None:
    theory = faithful(cosine_residual_mean=[0, 0.01, -0.2, 0.0, 0.0, 0.0, 0.0])
    theory.loc[2, ["cosine_residual_mean_band_low", "cosine_residual_mean_band_high"]] = -0.3, -0.05
    sentence = said(theory)
    assert "Eq. 15 holds in layers 1, 3-6 and is open in layer 2." in sentence
    assert "the largest miss of Eq. 15 is -0.200 [-0.300, -0.050], in layer 2." in sentence
    assert "largest miss" not in said(faithful(cosine_residual_mean=np.nan))
    assert "Eq. 15 does not apply" in said(faithful(cosine_residual_mean=np.nan))


def test_the_lag_angle_is_no_evidence() -> None:
    sentence = said(faithful())
    assert "is 0.12 [0.12, 0.12] rad after layer 6; by algebra it is never negative" in sentence
    few = faithful().assign(lag_angle_samples=5)
    assert "in the 5 of 56 samples that begin with a cosine above 0; by algebra" in said(few)
    assert "lag angle" not in said(faithful(lag_angle_mean=np.nan))


def test_one_image_judges_nothing_and_says_so() -> None:
    theory = faithful()
    theory[[name for name in theory if name.endswith(("_low", "_high"))]] = np.nan
    assert said(theory) == (
        "One image judges no assumption. One layer on from the measured cross-modal cosine, the "
        "largest miss of Eq. 15 is 0.060, in layer 1. The lag angle (Eq. 17) is 0.12 rad after "
        "layer 6; by algebra it is never negative, so it is no evidence."
    )
    assert "One image" not in said(faithful())


def test_one_layer() -> None:
    theory = faithful().query("layer <= 1")
    assert "the largest miss of Eq. 15 is 0.060 [0.060, 0.060], in layer 1." in said(theory)


def test_no_text_or_no_image_says_nothing() -> None:
    assert said(made_tables.theory().iloc[:0]) == ""


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((1.6, 1.43, 1.71), "1.6 [1.4, 1.7]"),
        ((10.2, 9.63, 11.4), "10.2 [9.6, 11.4]"),  # digits agree
        ((-0.1, -0.21, 0.012), "-0.10 [-0.21, 0.012]"),
        ((1.6, np.nan, np.nan), "1.6"),
    ],
)
def test_a_number_with_its_interval(numbers: tuple[float, ...], text: str) -> None:
    assert with_interval(*numbers) == text
    assert text.endswith(between(*numbers[1:]))
