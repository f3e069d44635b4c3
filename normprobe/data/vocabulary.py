"""What a tokenizer can emit, and how one of its tokens reads."""

from typing import Any


def vocabulary_ids(tokenizer: Any) -> list[int]:
    """All ids the tokenizer can emit, ascending. A table often has more rows than that."""
    return sorted(set(tokenizer.get_vocab().values()))


def token_text(tokenizer: Any, token_id: int) -> str:
    """The text of a token, its leading space kept.

    Byte-level tokens are decoded. A token that is a fragment of a character decodes to nothing
    readable and keeps its spelling in the vocabulary.
    """
    spelling = str(tokenizer.convert_ids_to_tokens(token_id))
    if "\u2581" in spelling:  # SentencePiece's space; decoding would drop a leading one
        return spelling.replace("\u2581", " ")
    text = str(tokenizer.decode([token_id]))
    return spelling if not text or "\ufffd" in text else text
