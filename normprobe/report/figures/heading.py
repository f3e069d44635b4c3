"""A long title in as many lines as its figure needs."""

import textwrap

_PER_INCH = 14  # characters


def wrapped(text: str, width: float) -> str:
    """A title that fits.

    Args:
        text: of one or more lines.
        width: of the figure, in inches.
    """
    characters = int(width * _PER_INCH)
    return "\n".join(textwrap.fill(line, characters) for line in text.splitlines())
