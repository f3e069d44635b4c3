import numpy as np
import pandas as pd
import pytest
from support import made_tables

from normprobe.measurements.layers.words import layers_verdict

FLAT = [np.nan, 0.1, 0.1, 0.1]


def layers(visual_norm, text_norm, visual_angle, text_angle):
    return pd.concat(
        [
            made_tables.layer_rows("visual", visual_norm, visual_angle),
            made_tables.layer_rows("text", text_norm, text_angle),
        ],
        ignore_index=True,
    )


def test_louder_and_slower():
    table = layers(
        [16.53, 16.5, 16.5, 16.5],
        [0.29, 1.5, 2.4, 6.9],
        [np.nan, 0.05, 0.05, 0.05],
        [np.nan, 0.6, 0.3, 0.06],
    )
    assert layers_verdict(table) == (
        "Visual tokens enter the decoder 57 x louder than text tokens and turn 9.0 x more slowly "
        "in layers 1-2. After layer 3 they are 2.4 x louder."
    )


@pytest.mark.parametrize(
    ("visual_norm", "text_norm", "visual_angle", "text_angle", "sentence"),
    [
        # The gap of Ovis: loud, and yet in step.
        (64, 1.38, FLAT, FLAT, "46 x louder than text tokens but turn at about the same rate."),
        (1, 1, FLAT, FLAT, "about as loud as text tokens and turn at about the same rate."),
        (1, 2, FLAT, FLAT, "2.0 x quieter than text tokens but turn at about the same rate."),
        (
            1,
            2,
            [np.nan, 0.3, 0.3, 0.1],
            FLAT,
            "2.0 x quieter than text tokens and turn 3.0 x more quickly in layers 1-2.",
        ),
        (
            5,
            1,
            [np.nan, 0.02, 0.1, 0.1],
            FLAT,
            "5.0 x louder than text tokens and turn 5.0 x more slowly in layer 1.",
        ),
        # No clear gap in layer 1: the whole depth speaks.
        (
            5,
            1,
            [np.nan, 0.09, 0.02, 0.02],
            FLAT,
            "5.0 x louder than text tokens and turn 2.3 x more slowly on average over all layers.",
        ),
        (
            5,
            1,
            [np.nan, 0.15, 0.15, 0.15],
            FLAT,
            "5.0 x louder than text tokens but turn 1.5 x more quickly on average over all layers.",
        ),
        (4052, 1, FLAT, FLAT, "4050 x louder than text tokens but turn at about the same rate."),
    ],
)
def test_wording(visual_norm, text_norm, visual_angle, text_angle, sentence):
    table = layers([visual_norm] * 4, [text_norm] * 4, visual_angle, text_angle)
    assert layers_verdict(table).startswith(f"Visual tokens enter the decoder {sentence}")


def test_a_gap_that_closes():
    table = layers([10, 10, 10, 10], [1, 5, 9, 10], FLAT, FLAT)
    assert layers_verdict(table).endswith("After layer 3 they are about as loud.")


def test_nothing_to_compare():
    text = made_tables.layer_rows("text", [1, 2], [np.nan, 0.1])
    assert layers_verdict(text) == ""
    assert layers_verdict(made_tables.layers().iloc[:0]) == ""
    blank = made_tables.layers()
    blank.loc[blank["group"] == "visual", "norm_mean"] = np.nan
    assert layers_verdict(blank) == ""
    silent = layers([1, 1], [0, 0], [np.nan, 0.1], [np.nan, 0.1])
    assert layers_verdict(silent) == ""


def test_without_angles_the_norms_still_speak():
    table = made_tables.layers()
    table["angle_mean"] = np.nan
    assert layers_verdict(table).startswith(
        "Visual tokens enter the decoder 57 x louder than text tokens. After"
    )
