"""The tokenizer of a processor, its token ids, and the text of a token."""

from typing import Any


def tokenizer_of(processor: Any) -> Any:
    """The tokenizer of a processor, or a bare tokenizer itself; None for an image processor."""
    # A bare tokenizer comes first: some hold another object under the name `tokenizer`.
    held = (processor, getattr(processor, "tokenizer", None))
    return next((found for found in held if hasattr(found, "get_vocab")), None)


def special_token_ids(tokenizer: Any) -> list[int]:
    """All ids that the tokenizer treats as special, ascending.

    ``all_special_ids`` holds the named ones (bos, eos, ...). Chat markers such as ``<|im_start|>``
    are often special in ``added_tokens_decoder`` alone.
    """
    named = getattr(tokenizer, "all_special_ids", [])
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = {*named, *(token_id for token_id, token in added.items() if token.special)}
    return sorted(special - {None})  # what is named, but is in no vocabulary, has no id


def vocabulary_ids(tokenizer: Any) -> list[int]:
    """All ids that the tokenizer can emit, ascending. An embedding table often has more rows."""
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
