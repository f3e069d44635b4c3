"""The sentence says no more than its intervals."""

import numpy as np
from support import made_tables

from normprobe.measurements.grounding.words import grounding_verdict


def test_each_direction_is_told_with_its_layers_and_ends():
    assert grounding_verdict(made_tables.grounding()) == (
        "Against those outside, visual tokens inside the box of a word are closer to the word "
        "after layers 2-4 (cosine gap 0.020 to 0.060 [0.010, 0.070]), farther from it after layer "
        "0 (cosine gap -0.020 [-0.030, -0.010]) and not told apart after layer 1 (cosine gap 0 "
        "[-0.010, 0.010]). The attention score that they draw from it is higher in layers 2-4 (gap "
        "0.40 to 1.20 [0.20, 1.40]) and not told apart in layer 1 (gap 0 [-0.20, 0.20]). In "
        "brackets: 95 % intervals over images, of layers in all of them together."
    )


def test_an_interval_that_ends_at_zero_tells_nothing():
    table = made_tables.grounding()
    for column in ("cosine_gap_band_low", "score_gap_band_low"):
        table[column] = table[column].clip(upper=0)
    assert "closer" not in grounding_verdict(table)
    assert "higher" not in grounding_verdict(table)


def test_one_image_has_no_interval_and_no_finding():
    table = made_tables.grounding(intervals=False)
    sentence = grounding_verdict(table)
    assert "closer" not in sentence
    assert "told apart by no interval (cosine gap -0.020 to 0.060)" in sentence
    assert sentence.endswith("One image, no intervals.")


def test_a_model_without_scores_has_cosines_alone():
    table = made_tables.grounding().assign(score_gap=np.nan)
    assert "closer to the word" in grounding_verdict(table)
    assert "score" not in grounding_verdict(table)


def test_without_a_number_there_is_nothing_to_tell():
    assert grounding_verdict(made_tables.grounding().assign(cosine_gap=np.nan)) == ""
