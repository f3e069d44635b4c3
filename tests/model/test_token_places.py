"""Which text follows an image, and where a word stands among tokens that hold parts of words."""

from types import SimpleNamespace

import pytest
import torch

from normprobe.model.find.overrides import PREPENDED
from normprobe.model.token_places import text_after_image, tokens_of_word
from normprobe.schema import SPECIAL, TEXT, TOKEN_GROUPS, VISUAL


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


def test_positions_of_the_decoder_input_are_not_those_of_the_prompt():
    """Where visual tokens stand before the prompt, its ids begin behind them."""
    named = [VISUAL, VISUAL, VISUAL, SPECIAL, TEXT, TEXT]
    groups = torch.tensor([TOKEN_GROUPS.index(name) for name in named])
    model = SimpleNamespace(parts=SimpleNamespace(fusion=PREPENDED))
    batch = SimpleNamespace(model=model, ids=torch.tensor([[1, 70, 80]]))
    places, ids = text_after_image(batch, groups)
    assert places.tolist() == [4, 5]
    assert ids == [70, 80]
