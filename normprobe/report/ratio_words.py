"""Ratios in words, each with its interval, by one rule of three states.

A ratio *differs* from 1 where its interval lies on one side of 1; it is *equal* where the interval
lies within a factor of 1.25 of 1; it is *not told apart* where neither holds. What is printed says
the same: the state is that of the ends as they are printed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import NamedTuple, Self

import pandas as pd

from normprobe.report.readable import significant

#: Ratios between 1 / 1.25 and 1.25 are called equal: token spread is larger than that.
ALIKE = 1.25

#: How a sentence says that neither a difference nor equality is shown.
OPEN = "not told apart"


class Words(NamedTuple):
    """What is said of a ratio above 1, below 1, about 1, and of one that is none of these."""

    above: str
    below: str
    alike: str
    open: str = OPEN

    def of(self, state: int | None) -> str:
        """Of a ``Ratio.state``."""
        return self.open if state is None else (self.alike, self.above, self.below)[state]

    def direct(self, ratios: Sequence["Ratio"], *, beside_inverses: bool) -> str:
        """The factor of what is not told apart; beside inverse ones it says that it is none."""
        way = f" {self.alike.removeprefix('about ')}" if beside_inverses else ""
        return f"{factor(ratios)}{way}"


LOUD = Words("louder", "quieter", "about as loud", f"at norms {OPEN}")
FAST = Words("more quickly", "more slowly", "about as fast", f"at rates {OPEN}")


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval."""

    value: float  # the number
    low: float = math.nan  # the lower end; NaN: there is no interval
    high: float = math.nan  # the upper end, likewise

    @property
    def has_interval(self) -> bool:
        """Whether both ends are known."""
        return not (math.isnan(self.low) or math.isnan(self.high))

    @property
    def sign(self) -> int | None:
        """1 or -1 where the interval lies above or below 0; None: it holds 0, or there is none."""
        if not self.has_interval or self.low <= 0 <= self.high:
            return None
        return 1 if self.low > 0 else -1

    def widened(self, by: float) -> Self:
        """With ends moved away from the value, by that factor; a ratio's by its logarithm."""
        low, high = (self.value + by * (end - self.value) for end in (self.low, self.high))
        return replace(self, low=low, high=high)

    def lies_beyond(self, other: "Estimate") -> bool:
        """Whether it is larger, and the intervals do not overlap; without intervals: larger."""
        low = self.low if self.has_interval else self.value
        return low > (other.high if other.has_interval else other.value)


class Ratio(Estimate):
    """A ratio and its 95 % interval."""

    def widened(self, by: float) -> Self:
        """As of an ``Estimate``."""
        if not (self.usable and self.low > 0):
            return super().widened(by)
        low, high = (self.value * (end / self.value) ** by for end in (self.low, self.high))
        return replace(self, low=low, high=high)

    @property
    def usable(self) -> bool:
        """Whether it means something: it is finite and positive."""
        return usable(self.value)

    @property
    def state(self) -> int | None:
        """1: above 1; -1: below 1; 0: equal within ``ALIKE``; None: not told apart.

        Equality comes first: an interval within ``ALIKE`` of 1 may well lie beside 1. Without an
        interval the value itself has the say, of what was measured alone.
        """
        if not self.usable:
            return None
        low, high = (self.low, self.high) if self.has_interval else (self.value,) * 2
        if _printed(low) >= 1 / ALIKE and _printed(high) <= ALIKE:
            return 0
        if _printed(low) > 1:
            return 1
        return -1 if _printed(_inverse(high)) > 1 else None  # below 1 the inverse is told

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


def ratio_in_words(
    ratios: Sequence[Ratio], words: Words, than: str = "", *, beside_inverses: bool = False
) -> str:
    """One ratio, or several of one state: ``82 x [68, 102] louder than text tokens``.

    Args:
        ratios: of one state.
        words: what is said of them.
        than: what they are compared with; empty: it is known.
        beside_inverses: whether the sentence tells others the other way round: a factor that is
            not turned round then says so, ``about as loud (1.10 x as loud)``.
    """
    state = ratios[0].state
    if not state:
        beside = f" {'from' if state is None else 'as'} {than}" if than else ""
        return (
            f"{words.of(state)}{beside} ({words.direct(ratios, beside_inverses=beside_inverses)})"
        )
    told = ratios if state > 0 else [ratio.inverse for ratio in ratios]
    return f"{factor(told)} {words.of(state)}{f' than {than}' if than else ''}"


def hold_inverses(ratios: Iterable[Ratio]) -> bool:
    """Whether a sentence tells one of them the other way round: it lies below 1."""
    return any(ratio.state == -1 for ratio in ratios)


def factor(ratios: Sequence[Ratio]) -> str:
    """``1.40 to 8.00 x [1.30, 8.20]``: the smallest and the largest ratio, and their intervals."""
    known = [ratio for ratio in ratios if ratio.has_interval]
    ends = [min(ratio.low for ratio in known), max(ratio.high for ratio in known)] if known else []
    values = [of(ratio.value for ratio in ratios) for of in (min, max)]
    *told, low, high = [*agreeing([*values, *ends]), *[""] * (2 - len(ends))]
    text = f"{' to '.join(dict.fromkeys(told))} x"
    return f"{text} [{low}, {high}]" if known else text


def agreeing(numbers: Sequence[float]) -> list[str]:
    """Positive numbers with as many decimals each, where they are of one size.

    Two decimals below 2, one below 10, else none: as the smallest asks, where the largest is at
    most ten times as large; else as each asks.
    """
    together = max(numbers) <= 10 * min(numbers)
    return [digits(number, min(numbers) if together else None) for number in numbers]


def digits(ratio: float, smallest: float | None = None) -> str:
    """Two decimals below 2, one below 10, else none."""
    asks = ratio if smallest is None else smallest
    if not 0.1 <= asks < 99999:
        return significant(ratio, digits=2)
    return f"{ratio:.{2 if asks < 1.995 else 1 if asks < 9.95 else 0}f}"


def brackets(ratios: Sequence[Estimate], samples: int | None = None, bands: str = "") -> str:
    """What the brackets are, or why there are none, as a sentence."""
    if any(ratio.has_interval for ratio in ratios):
        together = f", of {bands} in all of them together" if bands else ""
        return f"In brackets: 95 % intervals over images{together}."
    if samples is None:
        return "No intervals."
    return f"One {'sample' if samples <= 1 else 'image'}, no intervals."


def ratios_by_layer(rows: pd.DataFrame, column: str) -> dict[int, Ratio]:
    """A ratio of each layer, by ascending layer, with its band where the table has one."""
    ends = "band" if f"{column}_band_low" in rows else "ci"
    columns = [column, f"{column}_{ends}_low", f"{column}_{ends}_high"]
    numbers = rows.set_index("layer").sort_index().reindex(columns=columns).astype(float)
    if numbers[columns[1]].notna().any():  # of a layer that one image alone holds nothing is known
        numbers = numbers.fillna({columns[1]: 0.0, columns[2]: math.inf})
    return {int(layer): Ratio(*row) for layer, *row in numbers.itertuples()}


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


def _printed(end: float) -> float:
    return end if end in (0.0, math.inf) else float(digits(end))


def _inverse(value: float) -> float:
    return 1 / value if value else math.inf
