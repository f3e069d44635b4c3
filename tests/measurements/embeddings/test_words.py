from support import made_tables

from normprobe.measurements.embeddings.words import embeddings_verdict


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
