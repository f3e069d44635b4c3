import numpy as np
import pandas as pd
import pytest
from support import made_tables

from normprobe.measurements.layers.words import layers_verdict, placement_sentence

FLAT = [np.nan, 0.1, 0.1, 0.1]
OVER_IMAGES = "In brackets: 95 % intervals over images, of layers in all of them together."
NO_INTERVALS = "One image, no intervals."


def layers(visual_norm, text_norm, visual_angle, text_angle, samples=56):
    return made_tables.with_ratios(
        made_tables.layer_rows("visual", visual_norm, visual_angle, samples=samples),
        made_tables.layer_rows("text", text_norm, text_angle, samples=samples),
    )


def with_intervals(table, **spread):
    """A relative half-width a metric; one number, or one a layer."""
    table = table.copy()
    for metric, by in spread.items():
        by = table["layer"].map(dict(enumerate(np.broadcast_to(by, table["layer"].nunique()))))
        for column in (f"{metric}_ratio_to_text", f"{metric}_geometric_ratio_to_text"):
            for ends in ("ci", "band"):
                table[f"{column}_{ends}_low"] = table[column] / (1 + by)
                table[f"{column}_{ends}_high"] = table[column] * (1 + by)
    return table


def test_text_alone_grows_and_a_special_token_is_loud():
    text = made_tables.layer_rows("text", [2.0, 30.0, 40.0, 50.0], FLAT)
    special = made_tables.layer_rows("special", [2.0, 30.0, 900.0, 60.0], FLAT)
    special["norm_q50"] = [2.0, 30.0, 45.0, 60.0]
    special = special.assign(
        loudest_share=0.97, loudest_token='"<s>"', loudest_position=0, loudest_samples=56
    )
    told = (
        "Text tokens enter the decoder with a mean norm of 2.000 and leave layer 3 with 50.00, "
        "25 x as much; layer 1 alone makes it 15 x."
    )
    sink = (
        " After layer 2 the mean norm of special tokens is 20 x their median: the loudest token "
        'of a sample holds 97 % of it, in 56 of 56 samples "<s>" at position 0.'
    )
    assert layers_verdict(text) == told
    assert layers_verdict(pd.concat([text, special])) == told + sink
    assert layers_verdict(text[text["layer"] == 0]) == ""
    assert layers_verdict(text.assign(norm_mean=[np.nan, 1.0, 2.0, 3.0])) == ""


def test_louder_and_slower_with_intervals():
    table = layers(
        [16.53, 16.5, 16.5, 16.5],
        [0.29, 1.5, 2.4, 6.9],
        [np.nan, 0.05, 0.05, 0.05],
        [np.nan, 0.6, 0.3, 0.1],
    )
    assert layers_verdict(with_intervals(table, norm=0.1, angle=0.2)) == (
        "Visual tokens enter the decoder 57 x [52, 63] louder than text tokens by geometric "
        "means, 57 x [52, 63] louder by arithmetic ones. They are 2.4 to 11.0 x [2.2, 12.1] "
        "louder after layers 1-3. They turn 2.00 to 12.00 x [1.67, 14.40] more slowly in "
        f"layers 1-3. {OVER_IMAGES}"
    )


def test_both_blocks_where_the_sign_changes():
    """Text four times as fast in layers 1-2, visual three times as fast in layers 3-32."""
    norms = [1.0] * 33
    table = layers(
        norms, norms, [np.nan, *[0.1] * 2, *[0.3] * 30], [np.nan, *[0.4] * 2, *[0.1] * 30]
    )
    assert (
        "They turn 4.0 x more slowly in layers 1-2 and 3.0 x more quickly in layers 3-32."
        in layers_verdict(table)
    )


def test_an_interval_that_holds_1_is_no_difference():
    table = layers([1.3] * 4, [1] * 4, [np.nan, 0.1, 0.1, 0.1], [np.nan, 0.13, 0.13, 0.13])
    assert layers_verdict(with_intervals(table, norm=1.0, angle=[0, 0.1, 1.3, 0.1])) == (
        "Visual tokens enter the decoder at norms not told apart from text tokens (1.30 x [0.65, "
        "2.60]) by geometric means, at norms not told apart (1.30 x [0.65, 2.60]) by arithmetic "
        "ones. They are at norms not told apart (1.30 x [0.65, 2.60]) after layers 1-3. They turn "
        "1.30 x [1.18, 1.43] more slowly in layer 1, at rates not told apart (0.77 x [0.33, 1.77] "
        f"as fast) in layer 2 and 1.30 x [1.18, 1.43] more slowly in layer 3. {OVER_IMAGES}"
    )


@pytest.mark.parametrize(
    ("visual_norm", "text_norm", "loud"),
    [
        (64, 1.38, "46 x louder than text tokens by geometric means, 46 x louder"),
        (1, 1, "about as loud as text tokens (1.00 x) by geometric means, about as loud (1.00 x)"),
        (1, 2, "2.0 x quieter than text tokens by geometric means, 2.0 x quieter"),
        (4052, 1, "4052 x louder than text tokens by geometric means, 4052 x louder"),
    ],
)
def test_loud_and_yet_in_step(visual_norm, text_norm, loud):
    sentence = layers_verdict(layers([visual_norm] * 4, [text_norm] * 4, FLAT, FLAT))
    assert sentence.startswith(f"Visual tokens enter the decoder {loud} by arithmetic ones.")
    assert sentence.endswith(f"They turn about as fast (1.00 x) in layers 1-3. {NO_INTERVALS}")


def test_a_gap_that_closes_and_opens_the_other_way():
    table = layers([10, 10, 10, 10], [1, 5, 9, 20], FLAT, FLAT)
    assert (
        "They are 2.0 x louder after layer 1, about as loud (1.11 x as loud) after layer 2 and "
        "2.0 x quieter after layer 3." in layers_verdict(table)
    )


def test_one_layer_and_one_sample():
    table = layers([10, 10], [1, 5], [np.nan, 0.1], [np.nan, 0.4], samples=1)
    assert layers_verdict(table) == (
        "Visual tokens enter the decoder 10 x louder than text tokens by geometric means, 10 x "
        "louder by arithmetic ones. They are 2.0 x louder after layer 1. They turn 4.0 x more "
        "slowly in layer 1. One sample, no intervals."
    )


def test_visual_states_of_cross_attention_enter_no_decoder():
    visual = made_tables.layer_rows("visual", [1.4], [np.nan])
    text = made_tables.layer_rows("text", [1, 2, 3], [np.nan, 0.1, 0.1])
    assert layers_verdict(with_intervals(made_tables.with_ratios(visual, text), norm=0.1)) == (
        "Text attends to visual states 1.40 x [1.27, 1.54] louder than text tokens by geometric "
        "means, 1.40 x [1.27, 1.54] louder by arithmetic ones at the decoder input. In brackets: "
        "95 % intervals over images."
    )


def test_nothing_to_compare():
    visual = made_tables.layer_rows("visual", [1, 2], [np.nan, 0.1])
    assert layers_verdict(made_tables.with_ratios(visual)) == ""
    assert layers_verdict(made_tables.layers().iloc[:0]) == ""
    assert layers_verdict(layers([1, 1], [0, 0], [np.nan, 0.1], [np.nan, 0])) == ""


def test_layers_without_a_number_are_named():
    table = layers([1, 2, np.nan, 2], [1, 1, 1, 1], FLAT, [np.nan, 0.1, np.nan, 0.1])
    sentence = layers_verdict(table)
    assert "They are 2.0 x louder after layers 1, 3 (no ratio after layer 2)." in sentence
    assert "turn about as fast (1.00 x) in layers 1, 3 (no ratio in layer 2)." in sentence
    unknown_at_entry = layers([np.nan, 2, 2, 2], [1, 1, 1, 1], FLAT, FLAT)
    assert layers_verdict(unknown_at_entry).startswith(
        "Against text tokens, visual tokens are 2.0 x louder after layers 1-3. They turn "
    )


def test_without_angles_the_norms_still_speak():
    table = made_tables.layers()
    table["angle_geometric_ratio_to_text"] = np.nan
    sentence = layers_verdict(table)
    assert sentence.startswith("Visual tokens enter the decoder 57 x louder than text tokens by")
    assert "turn" not in sentence


@pytest.mark.parametrize(
    ("placement", "sentence"),
    [
        ("pre: the paper's theory applies", ""),
        ("pre-parallel: the paper's theory applies", ""),
        ("", ""),
        (
            "sandwich: the paper's theory is about pre-norm",
            "Norm placement of this decoder: sandwich. The paper's theory is about pre-norm.",
        ),
        (
            "unknown",
            "Norm placement of this decoder: unknown. The paper's theory is about pre-norm.",
        ),
    ],
)
def test_a_decoder_that_the_theory_is_not_about(placement, sentence):
    assert placement_sentence(placement) == sentence
