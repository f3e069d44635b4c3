"""Regions of a picture, and words that mean one."""

from __future__ import annotations

import re
from dataclasses import dataclass

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels of the picture."""


@dataclass(frozen=True)
class Referent:
    """What a word of a prompt means in the picture: the pair that grounding is about.

    Attributes:
        word: or a phrase; it stands in the prompt, after the picture.
        box: around what it means.
    """

    word: str
    box: Box


def is_region(box: Box, size: tuple[int, int]) -> bool:
    """Whether a box has an area and lies in a picture."""
    left, top, right, bottom = box
    width, height = size
    return 0 <= left < right <= width and 0 <= top < bottom <= height


def spans_of_word(word: str, text: str) -> list[tuple[int, int]]:
    """Where a word or phrase stands alone in a text, whatever its case: begin and end of each."""
    if not word.strip():
        return []
    pattern = rf"(?<!\w){re.escape(word.strip())}(?!\w)"
    return [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)]
