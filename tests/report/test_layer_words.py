import math
import re

from normprobe.report.ratio_words import Ratio, Words
from normprobe.report.sentences import (
    LayerPhrases,
    layer_findings,
    layer_ranges,
    layers_headline,
    layers_named,
)

TURN = LayerPhrases("angle", "They turn more quickly", "They turn more slowly", "Angle")


def by_layer(*values):
    ratios = [value if isinstance(value, Ratio) else Ratio(value) for value in values]
    return dict(enumerate(ratios, start=1))


def told(*values):
    return [each.words for each in layer_findings(by_layer(*values), TURN)]


def headline(*values):
    return layers_headline(by_layer(*values), "turn ", Words("more quickly", "more slowly"))


def test_one_state_one_layer_and_none():
    assert told(0.25, 0.5) == ["They turn more slowly in layers 1-2: 2.0 to 4.0 x (layer 1)."]
    assert told(4) == ["They turn more quickly in layer 1: 4.0 x."]
    assert told(2, 2) == ["They turn more quickly in layers 1-2: 2.0 x."]
    assert told() == told(math.nan) == []


def test_every_state_is_a_finding_and_the_direction_of_most_layers_is_first():
    fast, slow = Ratio(4, 3, 5), Ratio(1 / 3, 1 / 4, 1 / 2)
    assert told(slow, slow, *[fast] * 30) == [
        "They turn more quickly in layers 3-32: 4.0 x [3.0, 5.0].",
        "They turn more slowly in layers 1-2: 3.0 x [2.0, 4.0].",
    ]
    found = layer_findings(by_layer(fast, Ratio(1.3, 0.3, 3), 1.0, slow, slow), TURN)
    assert [(each.name, each.words) for each in found] == [
        ("angle.below", "They turn more slowly in layers 4-5: 3.0 x [2.0, 4.0]."),
        ("angle.above", "They turn more quickly in layer 1: 4.0 x [3.0, 5.0]."),
        ("angle.same", "Angle: about the same in layer 3 (1.00 x)."),
        ("angle.inconclusive", "Angle: inconclusive in layer 2."),
    ]
    assert found[0].numbers == {"layer 4": slow, "layer 5": slow}  # as in the table


def test_the_interval_is_that_of_the_number_before_it():
    two = Ratio(2, 1.9, 2.1), Ratio(9, 4, 20)
    assert told(*two) == [
        "They turn more quickly in layers 1-2: 2.0 to 9.0 x [4.0, 20.0] (layer 2)."
    ]


def test_a_layer_without_a_ratio_is_named():
    assert told(4, math.nan, 2, math.inf) == [
        "They turn more quickly in layers 1, 3: 2.0 to 4.0 x (layer 1).",
        "Angle: no ratio in layers 2, 4.",
    ]


def test_a_headline_tells_what_most_layers_do_and_which_are_inconclusive():
    slow, open_ = Ratio(1 / 3, 1 / 4, 1 / 2), Ratio(1.3, 0.3, 3)
    assert headline(slow, slow, 2.0, open_) == (
        "turn 3.0 x more slowly in layers 1-2",
        "layer 4 is inconclusive",
    )
    assert headline(0.5, 0.25) == ("turn up to 4.0 x more slowly in layers 1-2", "")
    assert headline(1, 1) == ("turn about the same in layers 1-2", "")
    assert headline(open_, open_) == ("", "layers 1-2 are inconclusive")
    assert headline(math.nan) == ("", "")


def test_eighty_noisy_layers_stay_readable():
    values = [Ratio(0.7 + 0.6 * (layer % 2), 0.5, 2) if layer % 3 else 0.5 for layer in range(80)]
    text = told(*values)
    assert max(map(len, text)) < 100
    assert sum(int(re.search(r"in (\d+) of 80 layers", each)[1]) for each in text) == 80


def test_layers_in_short():
    assert layer_ranges([1, 2, 3, 6]) == "1-3, 6"
    assert layer_ranges([]) == ""
    assert layers_named([1, 2, 4, 6, 8], 9, "after") == "after layers 1-2, 4, 6, 8"
    assert layers_named([1, 3, 5, 7, 9], 9) == "in 5 of 9 layers, from 1 to 9"
