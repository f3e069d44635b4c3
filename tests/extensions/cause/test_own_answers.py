"""Which answers of its own are right, by the rule of the data."""

import pytest

from normprobe.data.sample import Answer
from normprobe.extensions.cause.own_answers import is_right

LETTERS, WORDS = ("A", "B", "C"), ("red", "dark red", "no")


@pytest.mark.parametrize(
    ("said", "answer", "right"),
    [
        ("B", Answer("B", LETTERS), True),
        (" b) a cup, because", Answer("B", LETTERS), True),
        ("(B)", Answer("B", LETTERS), True),
        ("A", Answer("B", LETTERS), False),
        ("Because it is B", Answer("B", LETTERS), False),
        ("", Answer("B", LETTERS), False),
        ("Dark  red.", Answer("dark red", WORDS), True),
        ("dark red", Answer("red", WORDS), False),
        ("Reddish", Answer("red", WORDS), False),
        ("A cup.", Answer("a cup"), True),
        ("a cup of tea", Answer("a cup"), False),
        ("", Answer("a cup"), False),
    ],
)
def test_letter_case_and_signs_have_no_say(said, answer, right):
    assert is_right(said, answer) == right
