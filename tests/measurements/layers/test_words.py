import numpy as np
import pandas as pd
import pytest
from support import made_tables
from support.flat import loudest_of, tidied

from normprobe.measurements.layers import words
from normprobe.measurements.layers.words import placement_sentence
from normprobe.runs.run_folder import RunStore

FLAT = [np.nan, 0.1, 0.1, 0.1]
OVER_IMAGES = "[ ]: 95 % interval (bootstrap over images, simultaneous over layers)."
NO_INTERVALS = "One image, no intervals."
SAME = "About the same: within 0.80 to 1.25, the whole interval if there is one."


def said(layers):
    """What a flat layers.csv says: the headline, and each finding."""
    run = RunStore({"norm_placement": ""})
    run.write_table("layers", tidied("layers", layers))
    if "loudest_position" in layers:
        run.write_table("loudest", loudest_of(layers))
    verdict = words.verdict(run)
    return [verdict.headline, *(finding.words for finding in verdict.findings)]


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
        loudest_share=0.97, loudest_token="<s>", loudest_position=0, loudest_samples=56
    )
    told = [
        "Text tokens leave layer 3 with 25 x the norm that they enter with; layer 1 alone makes it "
        "15 x.",
        "The mean norm of text tokens goes from 2.000 to 50.00.",
        f"Text tokens turn by {FLAT[1]:.2f} to {FLAT[1]:.2f} radians a layer.",
    ]
    no_picture = (
        "No row that enters the decoder is a picture's: of visual tokens and their inertia "
    )
    no_picture += "this run says nothing."
    sink = (
        "After layer 2 the mean norm of special tokens is 20 x their median: the loudest token "
        'of a sample holds 97 % of it, in 56 of 56 samples "<s>" at position 0.'
    )
    assert said(text) == [*told, no_picture]
    assert said(pd.concat([text, special])) == [*told, sink, no_picture]
    assert said(text[text["layer"] == 0]) == [""]
    assert said(text.assign(norm_mean=[np.nan, 1.0, 2.0, 3.0])) == [""]


def test_larger_and_slower_with_intervals():
    table = layers(
        [16.53, 16.5, 16.5, 16.5],
        [0.29, 1.5, 2.4, 6.9],
        [np.nan, 0.05, 0.05, 0.05],
        [np.nan, 0.6, 0.3, 0.1],
    )
    assert said(with_intervals(table, norm=0.1, angle=0.2)) == [
        "Visual tokens enter the decoder with 57 x the norm of text and turn up to 12 x more "
        "slowly in layers 1-3.",
        "Norm of visual tokens at the decoder input: 57 x [52, 63] as large as that of text "
        "tokens.",
        "Visual tokens have a larger norm than text tokens after layers 1-3: 2.4 to 11.0 x "
        "[10.0, 12.1] (layer 1).",
        "Visual tokens turn more slowly than text tokens in layers 1-3: 2.0 to 12.0 x "
        "[10.0, 14.4] (layer 1).",
        OVER_IMAGES,
    ]


def test_both_directions_where_the_sign_changes():
    """Text four times as fast in layers 1-2, visual three times as fast in layers 3-32."""
    norms = [1.0] * 33
    table = layers(
        norms, norms, [np.nan, *[0.1] * 2, *[0.3] * 30], [np.nan, *[0.4] * 2, *[0.1] * 30]
    )
    told = said(table)
    assert told[0].endswith(" and turn 3.0 x more quickly in layers 3-32.")
    assert told[3:5] == [
        "Visual tokens turn more quickly than text tokens in layers 3-32: 3.0 x.",
        "Visual tokens turn more slowly than text tokens in layers 1-2: 4.0 x.",
    ]


def test_an_interval_that_holds_1_is_inconclusive():
    table = layers([1.3] * 4, [1] * 4, [np.nan, 0.1, 0.1, 0.1], [np.nan, 0.13, 0.13, 0.13])
    assert said(with_intervals(table, norm=1.0, angle=[0, 0.1, 1.3, 0.1])) == [
        "Visual tokens enter the decoder with a norm inconclusive against text and turn 1.30 x "
        "more slowly in layers 1, 3; layer 2 is inconclusive.",
        "Norm of visual tokens at the decoder input: inconclusive against that of text tokens "
        "(1.30 x [0.65, 2.60]).",
        "Norm of visual and text tokens: inconclusive after layers 1-3.",
        "Visual tokens turn more slowly than text tokens in layers 1, 3: 1.30 x [1.18, 1.43].",
        "Angle of visual tokens and text tokens: inconclusive in layer 2.",
        OVER_IMAGES,
    ]


@pytest.mark.parametrize(
    ("visual_norm", "text_norm", "enter", "norm"),
    [
        (64, 1.38, "46 x the norm of text", "46 x as large as that of text tokens"),
        (1, 1, "about the norm of text", "about the same as that of text tokens (1.00 x)"),
        (1, 2, "0.50 x the norm of text", "2.0 x smaller than that of text tokens"),
        (4052, 1, "4052 x the norm of text", "4052 x as large as that of text tokens"),
    ],
)
def test_another_norm_and_yet_in_step(visual_norm, text_norm, enter, norm):
    told = said(layers([visual_norm] * 4, [text_norm] * 4, FLAT, FLAT))
    assert told[0] == (
        f"Visual tokens enter the decoder with {enter} and turn about the same in layers 1-3."
    )
    assert told[1] == f"Norm of visual tokens at the decoder input: {norm}."
    assert told[-3:] == [
        "Angle of visual tokens and text tokens: about the same in layers 1-3 (1.00 x).",
        SAME,
        NO_INTERVALS,
    ]


def test_arithmetic_means_are_told_where_they_say_something_else():
    table = layers([10, 10], [1, 5], [np.nan, 0.1], [np.nan, 0.4])
    assert not any(line.startswith("By arithmetic") for line in said(table))
    table.loc[table["layer"] == 0, "norm_ratio_to_text"] = 3.0
    assert "By arithmetic means that is 3.0 x larger." in said(table)


def test_a_gap_that_closes_and_opens_the_other_way():
    table = layers([10, 10, 10, 10], [1, 5, 9, 20], FLAT, FLAT)
    assert said(table)[2:5] == [
        "Visual tokens have a larger norm than text tokens after layer 1: 2.0 x.",
        "Visual tokens have a smaller norm than text tokens after layer 3: 2.0 x.",
        "Norm of visual and text tokens: about the same after layer 2 (1.11 x).",
    ]


def test_one_layer_and_one_sample():
    told = said(layers([10, 10], [1, 5], [np.nan, 0.1], [np.nan, 0.4], samples=1))
    assert told[0] == (
        "Visual tokens enter the decoder with 10 x the norm of text and turn 4.0 x more slowly in "
        "layer 1."
    )
    assert told[-1] == "One sample, no intervals."


def test_visual_states_of_cross_attention_enter_no_decoder():
    visual = made_tables.layer_rows("visual", [1.4], [np.nan])
    text = made_tables.layer_rows("text", [1, 2, 3], [np.nan, 0.1, 0.1])
    assert said(with_intervals(made_tables.with_ratios(visual, text), norm=0.1)) == [
        "Text attends to visual states with 1.40 x the norm of text.",
        "Norm of visual states at the decoder input: 1.40 x [1.27, 1.54] as large as that of text "
        "tokens.",
        "Text attends to the visual states: of their turning this run says nothing.",
        "[ ]: 95 % interval (bootstrap over images).",
    ]


def test_nothing_to_compare():
    visual = made_tables.layer_rows("visual", [1, 2], [np.nan, 0.1])
    assert said(made_tables.with_ratios(visual)) == [""]
    assert said(made_tables.layers().iloc[:0]) == [""]


def test_layers_without_a_number_are_named():
    table = layers([1, 2, np.nan, 2], [1, 1, 1, 1], FLAT, [np.nan, 0.1, np.nan, 0.1])
    told = said(table)
    assert "Visual tokens have a larger norm than text tokens after layers 1, 3: 2.0 x." in told
    assert "Norm of visual and text tokens: no ratio after layer 2." in told
    assert "Angle of visual tokens and text tokens: no ratio in layer 2." in told
    unknown_at_entry = layers([np.nan, 2, 2, 2], [1, 1, 1, 1], FLAT, FLAT)
    assert said(unknown_at_entry)[0] == "Visual tokens turn about the same in layers 1-3."


def test_without_angles_the_norms_still_speak():
    table = made_tables.layers()
    table["angle_geometric_ratio_to_text"] = np.nan
    told = said(table)
    assert told[0] == "Visual tokens enter the decoder with 57 x the norm of text."
    assert not any("turn" in line for line in told)


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
