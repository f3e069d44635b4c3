import pandas as pd
import pytest
from support import made_tables

from normprobe.measurements.interface.words import interface_verdict


def test_against_prompts_table_and_projector_input():
    assert interface_verdict(made_tables.interface()) == (
        "At the decoder input visual tokens are 57 x louder than the text tokens of the prompts, "
        "and 75 x louder than the effective text embedding table. The projector lowers their mean "
        "L2 norm: 28.21 before, 16.53 after."
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
