"""Ratios in words: ``57 x louder``, ``about as loud``."""

import math

from normprobe.report.significant import significant

#: Ratios between 1 / 1.25 and 1.25 are called equal: token spread is larger than that.
ALIKE = 1.25


def loudness(ratio: float, *, short: bool = False) -> str:
    """``57 x louder than``; without the last word when nothing follows."""
    words = {1: ("louder", " than"), -1: ("quieter", " than"), 0: ("about as loud", " as")}
    way = direction(ratio)
    word, joint = words[way]
    factor = f"{times(ratio**way)} " if way else ""
    return factor + word + ("" if short else joint)


def direction(ratio: float) -> int:
    """1 where the ratio is clearly above 1, -1 where it is clearly below, 0 where it is alike."""
    if ratio >= ALIKE:
        return 1
    return -1 if ratio <= 1 / ALIKE else 0


def times(ratio: float) -> str:
    """``57 x``, with two digits, above 99 with three."""
    return f"{significant(ratio, digits=2 if ratio < 99.5 else 3)} x"


def usable(value: float) -> bool:
    """Whether a ratio of it means something: it is finite and positive."""
    return math.isfinite(value) and value > 0
