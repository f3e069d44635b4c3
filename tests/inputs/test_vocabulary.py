"""The tokenizer of whatever kind of processor, and how its tokens read."""

from types import SimpleNamespace

import pytest

from normprobe.inputs.processor import token_text, tokenizer_of, vocabulary_ids


def test_a_bare_tokenizer_is_not_taken_for_what_it_holds():
    held = SimpleNamespace()
    tokenizer = SimpleNamespace(tokenizer=held, get_vocab=lambda: {"a": 1, "b": 0, "c": 1})
    assert tokenizer_of(tokenizer) is tokenizer
    assert tokenizer_of(SimpleNamespace(tokenizer=tokenizer)) is tokenizer
    assert tokenizer_of(SimpleNamespace(tokenizer=held)) is None
    assert vocabulary_ids(tokenizer) == [0, 1]


@pytest.mark.parametrize(
    ("spelling", "decoded", "text"),
    [
        ("\u2581dog", "dog", " dog"),
        ("\u0120dog", " dog", " dog"),
        ("\u00e2", "\ufffd", "\u00e2"),
        ("<s>", "", "<s>"),
    ],
)
def test_text_of_a_token(spelling, decoded, text):
    tokenizer = SimpleNamespace(
        convert_ids_to_tokens=lambda token_id: spelling, decode=lambda ids: decoded
    )
    assert token_text(tokenizer, 7) == text
