import math
import re

from normprobe.report.ratio_words import FAST, LOUD, Ratio
from normprobe.report.sentences import layer_ranges, layers_in_words


def told(*values, words=FAST, where="in"):
    ratios = [value if isinstance(value, Ratio) else Ratio(value) for value in values]
    return layers_in_words(dict(enumerate(ratios, start=1)), words, where)


def test_one_block_one_layer_and_none():
    assert told(0.25, 0.5) == "2.0 to 4.0 x more slowly in layers 1-2"
    assert told(4) == "4.0 x more quickly in layer 1"
    assert told(4, 2, words=LOUD, where="after") == "2.0 to 4.0 x louder after layers 1-2"
    assert told() == ""
    assert told(math.nan) == ""


def test_every_block_is_told_where_the_sign_changes():
    fast, slow = Ratio(4, 3, 5), Ratio(1 / 3, 1 / 4, 1 / 2)
    assert told(slow, slow, *[fast] * 30) == (
        "3.0 x [2.0, 4.0] more slowly in layers 1-2 and "
        "4.0 x [3.0, 5.0] more quickly in layers 3-32"
    )
    assert told(fast, Ratio(1.3, 0.3, 3), 1.0, slow) == (
        "4.0 x [3.0, 5.0] more quickly in layer 1, at rates not told apart (1.30 x [0.30, 3.00] "
        "as fast) in layer 2, about as fast (1.00 x as fast) in layer 3 and 3.0 x [2.0, 4.0] more "
        "slowly in layer 4"
    )


def test_every_factor_of_a_sentence_says_which_way_it_is():
    """1.30 is text over visual, 1.03 to 1.15 visual over text."""
    assert told(1 / 1.3, 1.03, 1.15, words=LOUD, where="after") == (
        "1.30 x quieter after layer 1 and about as loud (1.03 to 1.15 x as loud) after layers 2-3"
    )
    louder = "1.30 x louder in layer 1 and about as loud (1.03 x) in layer 2"
    assert told(1.3, 1.03, words=LOUD) == louder
    assert "(1.00 x as fast)" in told(0.5, 1, 2, 1, 2, 1)
    assert "(1.00 x)" in told(3, 1, 2, 1, 2, 1)
    alone = {1: Ratio(1.03)}
    assert layers_in_words(alone, LOUD) == "about as loud (1.03 x) in layer 1"
    beside = layers_in_words(alone, LOUD, beside_inverses=True)
    assert beside == "about as loud (1.03 x as loud) in layer 1"


def test_a_layer_without_a_ratio_parts_no_block_and_is_named():
    assert told(4, math.nan, 2, math.inf) == (
        "2.0 to 4.0 x more quickly in layers 1, 3 (no ratio in layers 2, 4)"
    )


def test_many_blocks_are_told_by_direction():
    values = [0.25, 0.25, 1, 0.5, 2, 0.5, 1, 1, 3, 0.2]
    assert told(*values) == (
        "more slowly in 5 of 10 layers, from layer 1 to 10 (2.0 to 5.0 x); "
        "about as fast in 3 of 10 layers, from layer 3 to 8 (1.00 x as fast); "
        "more quickly in 2 of 10 layers, from layer 5 to 9 (2.0 to 3.0 x); "
        "the direction changes 4 times"
    )
    once = told(0.5, 1, 0.5, 1, 0.5, 2)
    assert once.endswith(
        "more quickly in 1 of 6 layers, in layer 6 (2.0 x); the direction changes 1 time"
    )
    assert "changes" not in told(0.5, 1, 0.5, 1, 0.5)


def test_eighty_noisy_layers_stay_readable():
    values = [Ratio(0.7 + 0.6 * (layer % 2), 0.5, 2) if layer % 3 else 0.5 for layer in range(80)]
    text = told(*values)
    assert len(text) < 250
    assert sum(map(int, re.findall(r"in (\d+) of 80 layers", text))) == 80


def test_layers_in_short():
    assert layer_ranges([1, 2, 3, 6]) == "1-3, 6"
    assert layer_ranges([]) == ""
