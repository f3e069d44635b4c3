"""Numbers for people: a fixed number of significant digits, never wider than eight characters."""

import math
from collections.abc import Sequence

MISSING = "-"


def significant(value: float, digits: int = 4) -> str:
    """A number with ``digits`` significant digits, e.g. ``16.53``, ``0.0123``, ``1.23e-5``.

    Args:
        value: any float; NaN gives ``-``.
        digits: significant digits, trailing zeros kept, so that columns line up.
    """
    if math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    mantissa, exponent_text = f"{value:.{digits - 1}e}".split("e")
    exponent = int(exponent_text)  # after rounding: 9.9999 counts as 10.00
    if -3 <= exponent < 5:
        rounded = float(f"{mantissa}e{exponent}")
        return f"{rounded:.{max(0, digits - 1 - exponent)}f}"
    return f"{mantissa}e{exponent}"


def agreeing(values: Sequence[float], digits: int = 2) -> list[str]:
    """Numbers with as many decimals each, where they are of one size; else each by itself.

    Args:
        values: of one size are those within a factor of 10, whatever their signs.
        digits: of the smallest.
    """
    sizes = [abs(value) for value in values]
    smallest = min(sizes, default=0.0)
    if smallest < 1e-3 or max(sizes) > min(10 * smallest, 1e4):
        return [significant(value, digits) for value in values]
    decimals = len(significant(smallest, digits).partition(".")[2])
    return [f"{value:.{decimals}f}" for value in values]


def count(value: float) -> str:
    """A number of tokens: exact below a million, then like ``2.880M``; NaN gives ``-``."""
    if math.isnan(value):
        return MISSING
    for limit, suffix in ((1e9, "G"), (1e6, "M")):
        if value >= limit:
            return significant(value / limit) + suffix
    return f"{value:.0f}"
