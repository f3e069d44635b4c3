"""A long title in as many lines as its figure needs."""

import textwrap

_PER_INCH = 14  # characters


def wrapped(text: str, width: float) -> str:
    """A title that fits."""
    characters = int(width * _PER_INCH)
    return "\n".join(textwrap.fill(line, characters) for line in text.splitlines())
