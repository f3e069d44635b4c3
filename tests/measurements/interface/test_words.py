import pandas as pd
import pytest
from support import made_tables

from normprobe.measurements.interface.words import interface_verdict


def with_interval(table, column, low, high, *, stage="decoder_input"):
    table = table.copy()
    row = (table["stage"] == stage) & (table["group"] == "visual")
    table.loc[row, [f"{column}_ci_low", f"{column}_ci_high"]] = [low, high]
    return table


def test_the_gap_and_what_the_projector_changes():
    assert interface_verdict(made_tables.interface()) == (
        "At the decoder input visual tokens are 57 x louder than the text tokens of the prompts by "
        "geometric means, 57 x louder by arithmetic ones, and 75 x louder than the effective text "
        "embedding table (Eq. 11). Behind the projector their geometric mean norm is 1.71 x "
        "smaller: 28.21 before, 16.53 after. One image, no intervals."
    )


def test_every_ratio_has_its_interval():
    table = with_interval(made_tables.interface(), "geometric_ratio_to_prompt", 50, 60)
    table = with_interval(table, "ratio_to_prompt", 40, 60)
    table = with_interval(table, "ratio_to_table", 70, 80)
    column = "geometric_ratio_to_before_projector"
    table = with_interval(table, column, 0.5, 0.625, stage="projector_output")
    sentence = interface_verdict(table)
    assert "are 57 x [50, 60] louder than the text tokens" in sentence
    assert "57 x [40, 60] louder by arithmetic ones" in sentence
    assert "and 75 x [70, 80] louder than the effective" in sentence
    assert "norm is 1.71 x [1.60, 2.00] smaller: 28.21 before" in sentence
    assert sentence.endswith("In brackets: 95 % intervals over images.")


def test_intervals_that_hold_1_tell_no_difference():
    table = with_interval(made_tables.interface(), "geometric_ratio_to_prompt", 0.9, 3000)
    column = "geometric_ratio_to_before_projector"
    table = with_interval(table, column, 0.3, 1.2, stage="projector_output")
    sentence = interface_verdict(table)
    assert "not told apart from the text tokens of the prompts (57 x [0.90, 3000])" in sentence
    assert "norm is not told apart from that before (0.59 x [0.30, 1.20]): 28.21 before" in sentence


def test_one_sample_has_no_intervals():
    table = made_tables.interface()
    table["samples"] = table["samples"].where(table["samples"].isna(), 1)
    assert interface_verdict(table).endswith("One sample, no intervals.")


def test_visual_states_of_cross_attention_are_not_at_the_decoder_input():
    table = made_tables.interface()
    table = table[(table["stage"] != "decoder_input") | (table["group"] != "visual")]
    assert interface_verdict(table).startswith(
        "The visual states that text attends to are 57 x louder than the text tokens of the prompts"
    )
    encoder = table[~table["stage"].str.startswith("projector")]
    assert interface_verdict(encoder) == (
        "The visual states that text attends to are 97 x louder than the text tokens of the "
        "prompts by geometric means, 97 x louder by arithmetic ones, and 128 x louder than the "
        "effective text embedding table (Eq. 11). One image, no intervals."
    )


def test_without_a_projector_input_compares_with_the_encoder():
    table = made_tables.interface()
    table = table[table["stage"] != "projector_input"]
    assert "28.21 before" in interface_verdict(table)
    assert "projector" not in interface_verdict(table[table["stage"] != "projector_output"])


@pytest.mark.parametrize("stages", [["vision_encoder"], ["text_embedding_table"], []])
def test_one_sided_models_have_no_verdict(stages):
    table = made_tables.interface()
    assert interface_verdict(table[table["stage"].isin(stages)]) == ""


def test_a_visual_table_is_told_beside_its_mixtures():
    columns = {"stage": [], "group": [], "norm_mean": [], "norm_q50": [], "ratio_to_prompt": []}
    columns |= {"samples": [], "norm_geometric_mean": [], "geometric_ratio_to_prompt": []}
    for stage, group, mean in (
        ("projector_input", "visual", 0.5),
        ("projector_output", "visual", 20.0),
        ("decoder_input", "visual", 20.0),
        ("visual_embedding_table", "nonzero_rows", 64.0),
    ):
        row = (stage, group, mean, mean, mean, 3, mean, mean)
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
    sentence = interface_verdict(pd.DataFrame(columns))
    assert (
        "Rows of the visual table have a mean L2 norm of 64.00, the tokens mixed from them 20.00; "
        "a median token mixes 4.0 rows (1 / ||p||^2)." in sentence
    )
