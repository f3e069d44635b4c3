import numpy as np
import pytest
from support import made_tables

from normprobe.measurements.attention.words import attention_verdict

NO_INTERVALS = "One prompt, no intervals."


def test_how_much_how_widely_and_how_well():
    assert attention_verdict(made_tables.attention(layers=4)) == (
        "Text gives 15 to 60 % of its attention to visual tokens. Against an even spread (90 %) "
        "that is 1.50 to 6.00 x less in layers 1, 3-4. Its entropy over them is 0.76 (layer 4) to "
        "0.79 (layer 1) of 1. Against a visual token outside the box, one inside draws 1.83 to "
        "2.83 x more attention in layers 1, 3-4; its score before the softmax differs by 0.25 "
        f"(layer 1) to 1.00 (layer 4). {NO_INTERVALS}"
    )


def test_every_block_is_told_where_the_sign_changes():
    table = made_tables.attention(layers=4, queries=("all text",), target=False)
    table.loc[table["layer"] == 1, "share_mean"] = 0.9
    table["even_share_mean"] = [0.3, np.nan, 0.2, 0.3]
    assert (
        "Against an even spread (20 to 30 %) that is 3.0 x more in layer 1, about as much (1.00 "
        "x) in layer 3 and 2.0 x less in layer 4." in attention_verdict(table)
    )


def test_ties_are_ties():
    table = made_tables.attention(layers=4, target=False).assign(share_mean=0.9)
    assert attention_verdict(table.assign(entropy_mean=0.8)) == (
        "Text gives 90 % of its attention to visual tokens. Against an even spread (90 %) that is "
        "about as much (1.00 x) in layers 1, 3-4. Its entropy over them is 0.80 of 1. "
        f"{NO_INTERVALS}"
    )
    table["entropy_mean"] = table["layer"].map({1: 0.5, 2: np.nan, 3: 0.7, 4: 0.5})
    assert "is 0.50 (layers 1, 4) to 0.70 (layer 3) of 1" in attention_verdict(table)


def test_all_the_attention_of_cross_attention_is_no_finding():
    table = made_tables.attention(layers=3, target=False).assign(
        even_share_mean=1.0, share_mean=1.0
    )
    assert attention_verdict(table) == (
        "In layers 1, 3 text attends to visual states alone (cross-attention): that they get all "
        "of it is no finding. Its entropy over them is 0.77 (layer 3) to 0.79 (layer 1) of 1. "
        f"{NO_INTERVALS}"
    )


def test_a_box_without_scores_before_the_softmax():
    table = made_tables.attention(layers=1).assign(score_gap=np.nan, signal_to_noise=1.1)
    sentence = attention_verdict(table)
    assert "one inside draws about as much attention (1.10 x) in layer 1. One" in sentence


@pytest.mark.parametrize("numbers", [{"heads": 0}, {"share_mean": np.nan, "entropy_mean": np.nan}])
def test_without_numbers_there_is_nothing_to_tell(numbers):
    assert attention_verdict(made_tables.attention(layers=3, target=False).assign(**numbers)) == ""
