"""Numbers for people: a fixed number of significant digits, never wider than eight characters."""

import math
from collections.abc import Sequence

MISSING = "-"


def significant(value: float, digits: int = 4) -> str:
    """A number with ``digits`` significant digits, e.g. ``16.53``, ``0.0123``, ``1.23e-5``."""
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


def of_one_size(numbers: Sequence[float]) -> list[str]:
    """Numbers of either sign to two digits, with as many decimals each where they are of one size.

    What is at most ten times as large as the smallest gets the decimals that the smallest asks for.
    0 has no size.
    """
    texts = [significant(number, 2) for number in numbers]
    sizes = [abs(number) for number in numbers if number and math.isfinite(number)]
    if not sizes or max(sizes) > 10 * min(sizes) or "e" in "".join(texts):
        return texts
    decimals = max(len(text.partition(".")[2]) for text in texts)
    return [
        f"{number:.{decimals}f}" if number and math.isfinite(number) else text
        for number, text in zip(numbers, texts, strict=True)
    ]


def count(value: float) -> str:
    """A number of tokens: exact below a million, then like ``2.880M``; NaN gives ``-``."""
    if math.isnan(value):
        return MISSING
    for limit, suffix in ((1e9, "G"), (1e6, "M")):
        if value >= limit:
            return significant(value / limit) + suffix
    return f"{value:.0f}"
