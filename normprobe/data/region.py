"""A region of a picture, and where a word stands in a text."""

from __future__ import annotations

import re

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels of the picture."""


def spans_of_word(word: str, text: str) -> list[tuple[int, int]]:
    """Where a word or phrase stands alone in a text, whatever its case: begin and end of each."""
    if not word.strip():
        return []
    pattern = rf"(?<!\w){re.escape(word.strip())}(?!\w)"
    return [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)]
