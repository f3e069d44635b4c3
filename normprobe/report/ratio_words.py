"""Ratios in words, each with its interval: ``82 x [68, 102] louder``, ``about as loud``."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

from normprobe.report.significant import significant

#: Ratios between 1 / 1.25 and 1.25 are called equal: token spread is larger than that.
ALIKE = 1.25


class Words(NamedTuple):
    """What is said of a ratio above 1, below 1, and about 1."""

    above: str
    below: str
    alike: str


LOUD = Words("louder", "quieter", "about as loud")
FAST = Words("more quickly", "more slowly", "about as fast")


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval.

    Attributes:
        value: the number.
        low: the lower end; NaN: there is no interval.
        high: the upper end, likewise.
    """

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def has_interval(self) -> bool:
        """Whether both ends are known."""
        return not (math.isnan(self.low) or math.isnan(self.high))

    def lies_beyond(self, other: "Estimate") -> bool:
        """Whether it is larger, and the intervals do not overlap; without intervals: larger."""
        low = self.low if self.has_interval else self.value
        return low > (other.high if other.has_interval else other.value)


class Ratio(Estimate):
    """A ratio and its 95 % interval."""

    @property
    def usable(self) -> bool:
        """Whether it means something: it is finite and positive."""
        return usable(self.value)

    @property
    def direction(self) -> int:
        """1 where it is clearly above 1, -1 where it is clearly below.

        0 where its interval holds 1, or where it lies within a factor of ``ALIKE`` of 1.
        """
        if self.has_interval and self.low <= 1 <= self.high:
            return 0
        if self.value >= ALIKE:
            return 1
        return -1 if self.value <= 1 / ALIKE else 0

    @property
    def inverse(self) -> "Ratio":
        """The same comparison the other way round."""
        return Ratio(*(_inverse(end) for end in (self.value, self.high, self.low)))

    @property
    def size(self) -> "Ratio":
        """How far it is from 1, whichever way: the exponential of its absolute logarithm."""
        away = max(self, self.inverse, key=lambda ratio: ratio.value)
        if self.low <= 1 <= self.high:
            return Ratio(away.value, 1.0, max(self.high, self.inverse.high))
        return away


def ratio_in_words(ratios: Sequence[Ratio], words: Words, than: str = "") -> str:
    """One ratio, or several of one direction: ``82 x [68, 102] louder than text tokens``.

    Args:
        ratios: usable, all of the same direction. Of several, the smallest and the largest are
            told, and the interval reaches from the lowest end to the highest.
        words: for what is compared.
        than: what it is compared with; empty: nothing follows.
    """
    way = ratios[0].direction
    if way == 0:
        return f"{words.alike}{f' as {than}' if than else ''} ({factor(ratios)})"
    told = ratios if way > 0 else [ratio.inverse for ratio in ratios]
    word = words.above if way > 0 else words.below
    return f"{factor(told)} {word}{f' than {than}' if than else ''}"


def factor(ratios: Sequence[Ratio]) -> str:
    """``1.40 to 8.0 x [1.30, 8.2]``: the smallest and the largest ratio, and their intervals."""
    values = [digits(of(ratio.value for ratio in ratios)) for of in (min, max)]
    text = f"{' to '.join(dict.fromkeys(values))} x"
    known = [ratio for ratio in ratios if ratio.has_interval]
    if not known:
        return text
    low, high = min(ratio.low for ratio in known), max(ratio.high for ratio in known)
    return f"{text} [{digits(low)}, {digits(high)}]"


def digits(ratio: float) -> str:
    """Two decimals below 2, two digits below 100, then three."""
    if 0.1 <= ratio < 1.995:
        return f"{ratio:.2f}"
    return significant(ratio, digits=2 if ratio < 99.5 else 3)


def brackets(ratios: Sequence[Estimate], samples: int | None = None) -> str:
    """What the brackets are, or why there are none, as a sentence.

    Args:
        ratios: all that were told.
        samples: how many were measured; None: not known.
    """
    if any(ratio.has_interval for ratio in ratios):
        return "In brackets: 95 % intervals over images."
    if samples is None:
        return "No intervals."
    return f"One {'sample' if samples <= 1 else 'image'}, no intervals."


def with_ends(numbers: Mapping[str, Estimate]) -> dict[str, float]:
    """Each number behind its name, then its ends: ``<name>_ci_low`` and ``<name>_ci_high``."""
    return {
        f"{name}{end}": value
        for name, number in numbers.items()
        for end, value in zip(("", "_ci_low", "_ci_high"), astuple(number), strict=True)
    }


def times(ratio: float) -> str:
    """``57 x``."""
    return f"{digits(ratio)} x"


def usable(value: float) -> bool:
    """Whether a ratio of it means something: it is finite and positive."""
    return math.isfinite(value) and value > 0


def _inverse(value: float) -> float:
    return 1 / value if value else math.inf
