import numpy as np
import pandas as pd
import pytest

from normprobe.measurements.attention.words import attention_verdict
from normprobe.measurements.embeddings.words import embeddings_verdict
from normprobe.measurements.interface.words import interface_verdict
from normprobe.measurements.layers.words import layers_verdict
from report import made_tables

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


def test_interface():
    assert interface_verdict(made_tables.interface()) == (
        "At the decoder input visual tokens are 57 x louder than the text tokens of the prompts, "
        "and 75 x louder than the effective text embedding table. The projector lowers their mean "
        "L2 norm: 28.21 before, 16.53 after."
    )


def test_interface_without_a_projector_input_compares_with_the_encoder():
    table = made_tables.interface()
    table = table[table["stage"] != "projector_input"]
    assert "28.21 before" in interface_verdict(table)
    assert "projector" not in interface_verdict(table[table["stage"] != "projector_output"])


@pytest.mark.parametrize("stages", [["vision_encoder"], ["text_embedding_table"], []])
def test_one_sided_models_have_no_interface_verdict(stages):
    table = made_tables.interface()
    assert interface_verdict(table[table["stage"].isin(stages)]) == ""


def test_embeddings():
    both = made_tables.embeddings("text", "visual")
    assert embeddings_verdict(both) == (
        "Rows of the visual table are 74 x louder than rows of the text table "
        "(mean L2 norm 64.00 against 0.8604)."
    )
    assert embeddings_verdict(made_tables.embeddings()) == (
        "Non-zero text embedding rows have a mean L2 norm of 0.8604; the loudest has 4.7 x that."
    )
    assert embeddings_verdict(both.iloc[:0]) == ""


def test_attention():
    assert attention_verdict(made_tables.attention(layers=4)) == (
        "Text gives 32% of its attention to visual tokens (spread evenly: 90%), most in layer 1 "
        "(60%). Over them it is most focused in layer 4 (entropy 0.76 of 1). A token inside the "
        "box draws 2.4 x the attention of one outside, at best 2.8 x in layer 4."
    )


def test_attention_to_an_image_outside_of_the_sequence_has_no_share_to_tell():
    table = made_tables.attention(layers=1, target=False).assign(
        even_share_mean=1.0, share_mean=1.0
    )
    assert attention_verdict(table) == (
        "Text gives 100% of its attention to visual tokens. Over them it is most focused in "
        "layer 1 (entropy 0.79 of 1)."
    )


def test_a_visual_table_is_told_beside_its_mixtures():
    columns = {"stage": [], "group": [], "norm_mean": [], "norm_q50": [], "ratio_to_prompt": []}
    for stage, group, mean in (
        ("projector_input", "visual", 0.5),
        ("projector_output", "visual", 20.0),
        ("decoder_input", "visual", 20.0),
        ("visual_embedding_table", "nonzero_rows", 64.0),
    ):
        row = (stage, group, mean, mean, mean)
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
    sentence = interface_verdict(pd.DataFrame(columns))
    assert (
        "Rows of the visual table have a mean L2 norm of 64.00, the tokens mixed from them 20.00; "
        "a median token mixes 4.0 rows (1 / ||p||^2)." in sentence
    )
