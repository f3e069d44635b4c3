"""Where a word stands among tokens that hold letters, parts of words or several of them."""

import pytest

from normprobe.model.token_places import tokens_of_word


def decode(ids):
    return "".join(PIECES[i] for i in ids)


PIECES = ["Where", " is", " the", " do", "g", "?", " Dog", "house", " the dog", "(", "dog"]


@pytest.mark.parametrize(
    ("ids", "word", "expected"),
    [
        ([0, 1, 2, 3, 4, 5], "dog", [3, 4]),
        ([0, 1, 2, 3, 4, 5], "the dog", [2, 3, 4]),
        ([6, 7, 5], "dog", []),  # a doghouse is none
        ([6, 5, 3, 4], "DOG", [0, 2, 3]),
        ([8, 5], "dog", [0]),
        ([0, 9, 10, 5], "dog", [2]),  # its neighbours touch it
        ([0, 1], "dog", []),
        ([], "dog", []),
    ],
)
def test_tokens_that_spell_a_word(ids, word, expected):
    assert tokens_of_word(word, ids, decode).nonzero().flatten().tolist() == expected
