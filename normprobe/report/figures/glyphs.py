"""Text that the figure font can draw.

The font is the one that matplotlib ships, so that a figure looks the same on every machine. It
has no CJK and few emoji: such characters are written as escapes, not as empty boxes.
"""

from functools import cache

from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ft2font import FT2Font

from normprobe.errors import escape

FONT = "DejaVu Sans"


def drawable(text: str) -> str:
    """``text`` with every character that the figure font lacks as its escape."""
    return "".join(c if ord(c) in _characters() else escape(c) for c in text)


def shortened(text: str, longest: int) -> str:
    """``text`` as it can be drawn, cut to so many characters."""
    return drawable(
        text if len(text) <= longest else f"{text[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"
    )


@cache
def _characters() -> frozenset[int]:
    return frozenset(FT2Font(findfont(FontProperties(family=FONT))).get_charmap())
