import pandas as pd
from normprobe.measurements.embeddings.shift_words import shift_verdict
from support import made_tables


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
