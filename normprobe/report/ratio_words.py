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
    if ratio >= ALIKE:
        return 1
    return -1 if ratio <= 1 / ALIKE else 0


def times(ratio: float) -> str:
    return f"{significant(ratio, digits=2 if ratio < 99.5 else 3)} x"


def usable(value: float) -> bool:
    return math.isfinite(value) and value > 0
