"""Whether a terminal is written to in colour."""

import os


def has_colour() -> bool:
    """Not where ``NO_COLOR`` is set: then nothing is bold either (https://no-color.org)."""
    return not os.environ.get("NO_COLOR")
