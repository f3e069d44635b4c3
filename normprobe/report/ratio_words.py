"""Ratios in words, each with its interval, by one rule of three states.

A ratio *differs* from 1 where its interval lies on one side of 1; it is *equal* where the interval
lies within a factor of 1.25 of 1; it is *inconclusive* where neither holds. What is printed says
the same: the state is that of the ends as they are printed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import NamedTuple, Self

import pandas as pd

from normprobe.report.readable import significant
from normprobe.report.verdict import OPEN, SAME
from normprobe.schema import GEOMETRIC_RATIOS, VISUAL
from normprobe.tidy import BAND, INTERVAL, along, select

#: Ratios between 1 / 1.25 and 1.25 are called equal: token spread is larger than that.
ALIKE = 1.25


class Words(NamedTuple):
    """What is said of a ratio above 1, and of one below 1."""

    above: str
    below: str

    def of(self, state: int | None) -> str:
        """Of a ``Ratio.state``."""
        return OPEN if state is None else (SAME, self.above, self.below)[state]


_LARGE = Words("larger", "smaller")


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
        """1: above 1; -1: below 1; 0: equal within ``ALIKE``; None: inconclusive.

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


def ratio_in_words(ratio: "Ratio", than: str = "") -> str:
    """``82 x [68, 102] as large as that of text``; ``about the same as that of text (1.10 x)``.

    Args:
        ratio: which is usable.
        than: what it is compared with; empty: it is known.
    """
    state = ratio.state
    if not state:
        beside = f" {'against' if state is None else 'as'} {than}" if than else ""
        return f"{_LARGE.of(state)}{beside} ({factor([ratio])})"
    if state > 0:
        return f"{factor([ratio])} {f'as large as {than}' if than else _LARGE.above}"
    return f"{factor([ratio.inverse])} {_LARGE.below}{f' than {than}' if than else ''}"


def spanned(ratios: Mapping[int, "Ratio"]) -> str:
    """``1.8 to 9.3 x [5.1, 18] (layer 2)``: the interval is that of the largest, in that layer.

    Args:
        ratios: by layer, of one state; those below 1 are told the other way round.
    """
    told = {n: each.inverse if each.state == -1 else each for n, each in ratios.items()}
    layer = max(told, key=lambda n: told[n].value)
    most, least = told[layer], min(each.value for each in told.values())
    ends = [most.low, most.high] if most.has_interval else []
    first, last, *interval = agreeing([least, most.value, *ends])
    text = f"{' to '.join(dict.fromkeys((first, last)))} x"
    text += f" [{', '.join(interval)}]" if interval else ""
    return text if first == last else f"{text} (layer {layer})"


def factor(ratios: Sequence[Ratio], *, ends: bool = True) -> str:
    """``1.40 x [1.30, 1.50]``; of several ``1.40 to 8.00 x``, with ``ends`` those of all."""
    known = [ratio for ratio in ratios if ends and ratio.has_interval]
    bounds = [min(r.low for r in known), max(r.high for r in known)] if known else []
    values = [of(ratio.value for ratio in ratios) for of in (min, max)]
    *told, low, high = [*agreeing([*values, *bounds]), *[""] * (2 - len(bounds))]
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
        together = f", simultaneous over {bands}" if bands else ""
        return f"[ ]: 95 % interval (bootstrap over images{together})."
    if samples is None:
        return "No intervals."
    return f"One {'sample' if samples <= 1 else 'image'}, no intervals."


def estimate_of(table: pd.DataFrame, quantity: str, /, **keys: object) -> Estimate:
    """A number of a tidy table with its interval; NaN where it has none.

    Args:
        table: tidy.
        quantity: which number.
        **keys: which row: columns and their values.
    """
    rows = select(table, quantity, **keys)
    return (
        Estimate(*map(float, rows[["mean", *INTERVAL]].iloc[0]))
        if len(rows)
        else Estimate(math.nan)
    )


def ratio_of(table: pd.DataFrame, quantity: str, /, **keys: object) -> Ratio:
    """The same of a ratio."""
    return Ratio(*astuple(estimate_of(table, quantity, **keys)))


def ratios_by_layer(rows: pd.DataFrame) -> dict[int, Ratio]:
    """A ratio of each layer, by ascending layer, with its band where the table has one.

    Args:
        rows: of one quantity in a tidy table, each of a layer.
    """
    ends = BAND if rows[[*BAND]].notna().any(axis=None) else INTERVAL
    numbers = rows.set_index("layer").sort_index()[["mean", *ends]].astype(float)
    if numbers[ends[0]].notna().any():  # of a layer that one image alone holds nothing is known
        numbers = numbers.fillna({ends[0]: 0.0, ends[1]: math.inf})
    return {int(layer): Ratio(*row) for layer, *row in numbers.itertuples()}


def ratios_to_text(layers: pd.DataFrame, metric: str, group: str = VISUAL) -> dict[int, Ratio]:
    """The visual tokens' geometric mean over that of text tokens, with its band over the layers."""
    behind = layers[(layers["group"] == group) & (layers["layer"] > 0)]
    return ratios_by_layer(along(select(behind, GEOMETRIC_RATIOS[metric]), behind["layer"]))


def ratio_after(
    layers: pd.DataFrame,
    layer: int,
    ratio: str = GEOMETRIC_RATIOS["norm"],
    group: str = VISUAL,
) -> Ratio:
    """How loud visual tokens are after one layer, with its interval; NaN where it is not known."""
    return ratio_of(layers, ratio, group=group, layer=layer)


def visual_states_are_attended(layers: pd.DataFrame) -> bool:
    """Whether the visual states stand beside the sequence: no decoder layer changes them."""
    of_visual = layers.loc[layers["group"] == VISUAL, "layer"]
    return len(of_visual) > 0 and of_visual.max() == 0 < layers["layer"].max()


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
