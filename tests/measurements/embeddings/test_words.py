"""What embeddings.csv and shift.csv say."""

import pandas as pd
from support import made_tables

from normprobe.measurements.embeddings.words import embeddings_verdict, shift_verdict


def test_the_visual_table_against_the_text_table_or_the_loudest_row():
    both = made_tables.embeddings("text", "visual")
    assert embeddings_verdict(both) == (
        "Rows of the visual table are 74 x louder than rows of the text table "
        "(mean L2 norm 64.00 against 0.8604). No intervals: these are all rows."
    )
    assert embeddings_verdict(made_tables.embeddings()) == (
        "Non-zero text embedding rows have a mean L2 norm of 0.8604; the loudest has 4.7 x that."
    )
    assert embeddings_verdict(both.iloc[:0]) == ""


def test_tables_that_differ_by_less_than_a_quarter_are_about_as_loud():
    both = made_tables.embeddings("text", "visual")
    both.loc[both["table"] == "visual", "norm_mean"] = both["norm_mean"].iloc[0] * 1.2
    assert "are about as loud as rows of the text table (1.20 x) (mean" in embeddings_verdict(both)


def beside_a_base():
    both = [made_tables.embeddings(), made_tables.embeddings().assign(table="base")]
    return pd.concat(both)


def test_the_change_of_the_mean_and_what_rose_among_the_loudest():
    tables = beside_a_base()
    tables.loc[tables["table"] == "base", "norm_mean"] /= 1.25
    sentence = shift_verdict(tables, made_tables.shift())
    assert "in the base (+25.0 %)" in sentence
    assert '(2 visual): "<|vision_start|>" (new), "<|vision_end|>" (new)' in sentence


def test_a_shift_between_widths_has_no_distance_to_tell():
    assert "moved" not in shift_verdict(beside_a_base(), made_tables.shift(distances=False))


def test_a_token_that_was_zero_in_the_base_has_no_ratio():
    shift = made_tables.shift()
    shift.loc[7, ["norm", "base_norm", "rank", "base_rank", "emerging"]] = [9.0, 0.0, 0, 3000, True]
    assert "(zero in the base)" in shift_verdict(beside_a_base(), shift)
    ending = f" and {shift['emerging'].sum() - 3} more."
    assert shift_verdict(beside_a_base(), shift).endswith(ending)


def test_an_empty_base_has_no_change_in_per_cent():
    tables = beside_a_base()
    tables.loc[tables["table"] == "base", "norm_mean"] = float("nan")
    assert "0.8604, - in the base. " in shift_verdict(tables, made_tables.shift())
