"""A vocabulary token as text that a terminal or a figure shows truthfully."""

import unicodedata

from rich.cells import cell_len

from normprobe.errors import escape

SPACE = "\u2423"  # open box

_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", '"': '\\"', " ": SPACE}

# What is invisible, joins its neighbour, reorders the line or is no character at all:
# marks, controls and formats (bidi, zero width), surrogates, private use, unassigned, separators.
_HIDDEN_CATEGORIES = ("M", "C", "Z")


def readable_token(text: str) -> str:
    """Quote a token and make every character of it visible.

    Spaces become ``\u2423``; newlines, tabs, control, combining, bidi and zero-width characters
    become escapes, and so does the replacement character that a partial UTF-8 sequence decodes
    to. Byte-fallback tokens such as ``<0x0A>`` stay as they are written in the vocabulary.
    """
    return '"' + "".join(map(_visible, text)) + '"'


def _visible(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    hidden = unicodedata.category(character).startswith(_HIDDEN_CATEGORIES)
    # Width 0 catches what the categories miss, such as conjoining Hangul vowels.
    if hidden or character == "\ufffd" or cell_len(character) == 0:
        return escape(character)
    return character
