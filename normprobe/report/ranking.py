"""Runs or models in order: ranks with intervals, and what they say.

A table of them is tidy: of each ``run`` its ranks and its numbers, with their intervals.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple
from statistics import NormalDist
from typing import TYPE_CHECKING, TypeVar

import pandas as pd

from normprobe.report.ratio_words import (
    Estimate,
    Ratio,
    brackets,
    estimate_of,
    factor,
    ratio_in_words,
    times,
)
from normprobe.report.readable import MISSING, of_one_size
from normprobe.report.verdict import OPEN, SAME, Finding
from normprobe.statistics.bootstrap import LEVEL
from normprobe.tidy import INTERVAL, QUANTITY, keys_of, select

if TYPE_CHECKING:
    from normprobe.report.figures.draw import Drawing

AnyEstimate = TypeVar("AnyEstimate", bound=Estimate)

#: Visual over text tokens at the decoder input; of models whose visual tokens never enter it, those
#: that text attends to over text tokens: a number of another kind, in no rank of the others.
DISPARITY, ATTENDED = "disparity_input", "attended_ratio"
INERTIA = "inertia_gap"
#: The place of a run: by what ranks the runs, and by inertia.
RANKS = ("rank", "inertia_rank")


class Rank(Estimate):
    """A place among runs, and the ends of the places that intervals leave open."""

    @property
    def places(self) -> str:
        """``1-3``."""
        return "-".join(dict.fromkeys(f"{end:.0f}" for end in (self.low, self.high)))

    def __str__(self) -> str:
        """``2``, or ``2 (1-3)`` where intervals leave it open."""
        if math.isnan(self.value):
            return MISSING
        return f"{self.value:.0f}{f' ({self.places})' * (self.low < self.high)}"


def ranking(
    measures: Sequence[Mapping[str, Estimate]],
    labels: Sequence[str],
    steps: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Runs by falling disparity; those of a training in the order of their steps, as given.

    The first measure is a ratio and ranks by how far it is from 1, whichever way. A rank is 1 and
    the number of runs with a larger number. Its interval says which ranks the intervals of the
    numbers leave open: from 1 and the number of runs that lie wholly beyond, to the number of runs
    that do not lie wholly behind. Without intervals the numbers themselves decide.
    """
    of_runs = dict(zip(labels, measures, strict=True))

    def measured(name: str) -> dict[str, Estimate]:
        return {run: found.get(name, Estimate(math.nan)) for run, found in of_runs.items()}

    first = measured(next(iter(measures[0])))
    if all(math.isnan(number.value) for number in first.values()):
        first = measured(ATTENDED)  # maybe they have that kind alone
    sizes = {run: Ratio(*astuple(number)).size for run, number in first.items()}
    ranks = {"rank": _ranks(sizes)}
    if any(INERTIA in found for found in measures):
        ranks["inertia_rank"] = _ranks(measured(INERTIA))
    if steps is None:
        labels = sorted(labels, key=lambda run: (math.isnan(sizes[run].value), -sizes[run].value))
    return measures_table(
        pd.DataFrame({"run": labels} | ({} if steps is None else {"step": steps})),
        [{**{name: of[run] for name, of in ranks.items()}, **of_runs[run]} for run in labels],
    )


class RankedBy:
    """``compared`` of a measurement whose runs one number of its main table ranks.

    Args:
        words: what the number is.
        quantity: its name; a ratio, or above 0.
        **keys: of its row in the main table.
    """

    NOTES: Sequence[str] = ()
    ROW_COLUMNS: Sequence[str] = ()

    def __init__(self, words: str, quantity: str, **keys: object) -> None:
        self.COLUMNS: Mapping[str, str] = {words: quantity}
        self.RANKED = words
        self._keys = keys

    def measures(self, table: pd.DataFrame, rows: pd.DataFrame) -> dict[str, Estimate]:
        """The number with its interval, where the table has one."""
        (quantity,) = self.COLUMNS.values()
        return {quantity: estimate_of(table, quantity, **self._keys)}

    def drawings(self, compare: pd.DataFrame) -> "list[Drawing]":
        """None but the ranking."""
        return []


def measures_table(keys: pd.DataFrame, measures: Sequence[Mapping[str, Estimate]]) -> pd.DataFrame:
    """Measures of the runs that ``keys`` name, as a tidy table; empty where one has none."""
    names = dict.fromkeys(name for found in measures for name in found)
    rows = [
        (*key, name, *astuple(found.get(name, Estimate(math.nan))))
        for key, found in zip(keys.itertuples(index=False), measures, strict=True)
        for name in names
    ]
    return pd.DataFrame(rows, columns=[*keys, QUANTITY, "mean", *INTERVAL])


def runs_of(table: pd.DataFrame) -> list[str]:
    """The names of the runs, in order."""
    return [str(run) for run in dict.fromkeys(table["run"])]


def numbers_of(
    table: pd.DataFrame, quantity: str, kind: type[AnyEstimate]
) -> dict[str, AnyEstimate]:
    """A quantity by run, with its interval, as far as it has one."""
    numbers = select(table, quantity).set_index("run")[["mean", *INTERVAL]]
    numbers = numbers.reindex(table["run"].unique()).astype(float)
    return {str(run): kind(*ends) for run, *ends in numbers.itertuples()}


def runs_side_by_side(table: pd.DataFrame) -> pd.DataFrame:
    """A row a run: its ranks, what names it, and its numbers, each an ``Estimate``."""
    runs = table[keys_of(table)].drop_duplicates(ignore_index=True)
    numbers = {
        name: [*numbers_of(table, name, Rank if name in RANKS else Estimate).values()]
        for name in dict.fromkeys(table[QUANTITY])
    }
    ranks = {name: numbers.pop(name) for name in RANKS if name in numbers}
    return pd.concat([pd.DataFrame(ranks), runs, pd.DataFrame(numbers)], axis=1)


def widened_for_pairs(numbers: Mapping[str, AnyEstimate]) -> dict[str, AnyEstimate]:
    """With intervals that overlap for all pairs of equal runs at once, in 95 % of comparisons.

    The intervals of two equal numbers overlap far more often than in 95 %, those of many pairs do
    not: they are widened from where Bonferroni over the pairs asks for it.
    """
    pairs = max(1, len(numbers) * (len(numbers) - 1) // 2)
    return {
        run: number.widened(max(1.0, wider_for(pairs) / math.sqrt(2)))
        for run, number in numbers.items()
    }


def signs_together(numbers: Mapping[str, Estimate]) -> dict[str, int | None]:
    """``Estimate.sign`` of each, by intervals that hold for all at once; without one, its own."""
    return {
        run: number.widened(wider_for(len(numbers))).sign
        if number.has_interval
        else (number.value > 0) - (number.value < 0)
        for run, number in numbers.items()
    }


def wider_for(comparisons: int) -> float:
    """How much wider an interval is that holds for so many comparisons together (Bonferroni)."""
    quantile = NormalDist().inv_cdf
    return quantile(1 - (1 - LEVEL) / (2 * comparisons)) / quantile((1 + LEVEL) / 2)


def _ranks(numbers: Mapping[str, Estimate]) -> dict[str, Rank]:
    """The rank of each number, and its interval."""
    numbers = widened_for_pairs(numbers)
    held = [number for number in numbers.values() if not math.isnan(number.value)]

    def rank(own: Estimate) -> Rank:
        if math.isnan(own.value):
            return Rank(math.nan)
        larger = sum(other.value > own.value for other in held)
        beyond = sum(other.lies_beyond(own) for other in held)
        return Rank(1 + larger, 1 + beyond, sum(not own.lies_beyond(other) for other in held))

    return {run: rank(number) for run, number in numbers.items()}


# --- in words ------------------------------------------------------------------------------------

_NAMED = 4  # runs in a list


def ranking_sentences(
    table: pd.DataFrame, what: str = "runs", failed: Collection[str] = ()
) -> tuple[str, list[Finding], str]:
    """Which have the largest and the smallest norm disparity, how many differ, where inertia is.

    Runs whose intervals overlap are named together: which of them is first is inconclusive. Of
    those that ``failed`` nothing was measured. Last, what the brackets are.
    """
    if not (table[QUANTITY] == DISPARITY).any():
        return "", [], ""
    runs = {run: run in failed for run in runs_of(table)}
    ratios, attended = usable_ratios(table, DISPARITY), usable_ratios(table, ATTENDED)
    headline, findings = "", list[Finding]()
    if len(ratios) == 1:
        ((run, ratio),) = ratios.items()
        of = f" in {run}" * (len(runs) > 1)
        headline = f"Visual tokens enter the decoder with {_norm(ratio)}{of}."
        findings.append(_extreme("norm_at_input", "Norm at the decoder input", ratios, ratios))
    if len(ratios) > 1:
        headline, extremes = _extremes(ratios, what)
        if "step" in table:
            steps = dict(zip(table["run"].astype(str), table["step"], strict=True))
            headline = _first_and_last(ratios, steps)
        findings += [*extremes, *_inertia(numbers_of(table, INERTIA, Estimate), what)]
    if len(ratios) < len(runs) or (len(runs) > 2 and "step" not in table):
        findings += _counts(runs, ratios, attended, what)
    gaps = [gap for gap in numbers_of(table, INERTIA, Estimate).values() if gap.value == gap.value]
    told = [*ratios.values(), *attended.values(), *gaps]
    return headline, findings, brackets(told) if told else ""


def usable_ratios(table: pd.DataFrame, quantity: str) -> dict[str, Ratio]:
    """By run, of those that have it."""
    return {run: ratio for run, ratio in numbers_of(table, quantity, Ratio).items() if ratio.usable}


def _counts(
    runs: Mapping[str, bool], ratios: Mapping[str, Ratio], attended: Mapping[str, Ratio], what: str
) -> list[Finding]:
    """What becomes of each of them, which failed or not: the numbers add up."""
    found, of_all = [], f"of {len(runs)} {what[: len(what) - (len(runs) == 1)]}"
    ways = (
        (1, "above", "Larger norm of visual tokens"),
        (-1, "below", "Smaller norm of visual tokens"),
        (0, "same", f"Norm {SAME}"),
        (None, OPEN, f"Norm {OPEN}"),
    )
    for way, name, words in ways:
        alike = {run: ratio for run, ratio in ratios.items() if ratio.state == way}
        if alike:
            size = [ratio.inverse if way == -1 else ratio for ratio in alike.values()]
            how = listed([*alike]) if way is None else factor(size, ends=False)
            told = f"{words} in {len(alike)} {of_all}: {how}."
            found.append(Finding(f"count.{name}", told, alike))
    for run, ratio in [*attended.items()][:_NAMED]:
        told = (
            f"In {run} text attends to visual states beside the sequence: {ratio_in_words(ratio)}."
        )
        found.append(Finding("attended", told, {run: ratio}))
    if len(attended) > _NAMED:
        more = len(attended) - _NAMED
        found.append(Finding("attended", f"Likewise in {more} more {of_all}."))
    left = [run for run in runs if run not in ratios and run not in attended]
    for told, failed in (("failed", True), ("without a ratio", False)):
        if names := [run for run in left if runs[run] == failed]:
            found.append(Finding(told, f"{len(names)} {of_all} {told} ({listed(names)})."))
    return found


def _first_and_last(ratios: Mapping[str, Ratio], steps: Mapping[str, int]) -> str:
    """From the first to the last step of a training."""
    first, last = (of(ratios, key=steps.__getitem__) for of in (min, max))
    before, after = widened_for_pairs({run: ratios[run] for run in (first, last)}).values()
    apart = before.lies_beyond(after) or after.lies_beyond(before)
    return (
        f"Visual tokens enter the decoder with {times(ratios[first].value)} the norm of text at "
        f"step {steps[first]} and {times(ratios[last].value)} at step {steps[last]}"
        f"{'' if apart else f'; the change is {OPEN}'}."
    )


def _extremes(ratios: Mapping[str, Ratio], what: str) -> tuple[str, list[Finding]]:
    """A headline, and the runs with the largest and the smallest disparity."""
    sizes = {run: ratio.size for run, ratio in ratios.items()}
    largest = _foremost(sizes)
    smallest = _foremost({run: size.inverse for run, size in sizes.items()})
    most, least = ratios[largest[0]], ratios[smallest[0]]
    found = [
        _extreme("largest", "Largest norm disparity", ratios, largest),
        _extreme("smallest", "Smallest norm disparity", ratios, smallest),
    ]
    if len(largest) == len(smallest) == len(ratios):
        told = f"Which of the {what} has the largest norm disparity at the decoder input is {OPEN}."
        return told, found
    headline = (
        "The norm of visual tokens at the decoder input is farthest from that of text in "
        f"{largest[0]} ({times(most.value)}) and nearest in {smallest[0]} ({times(least.value)})."
    )
    return headline, found


def _extreme(name: str, words: str, ratios: Mapping[str, Ratio], runs: Collection[str]) -> Finding:
    """The first of these runs with its number, and those that may as well be first."""
    first, *others = runs
    beside = f"; {OPEN} against {listed(others)}" if others else ""
    told = f"{words}: {first}, {ratio_in_words(ratios[first])}{beside}."
    return Finding(name, told, {run: ratios[run] for run in runs})


def _inertia(gaps: Mapping[str, Estimate], what: str) -> list[Finding]:
    """Where text tokens turn ahead of visual ones by most, and where they fall behind."""
    gaps = {run: gap for run, gap in gaps.items() if gap.value == gap.value}
    ways = signs_together(gaps)
    ahead = {run: gap for run, gap in gaps.items() if ways[run] == 1}
    behind = [run for run in gaps if ways[run] == -1]
    found = []
    if ahead:
        first, *others = _foremost(ahead)
        beside = f"; {OPEN} against {listed(others)}" if others else ""
        told = f"Text tokens turn ahead of visual ones by most in {first}: {_radians(gaps[first])}"
        found.append(Finding("inertia.above", f"{told}{beside}.", ahead))
    if behind:
        first, *others = behind
        beside = f"; likewise in {listed(others)}" if others else ""
        told = f"Visual tokens turn ahead of text in {first}: gap {_radians(gaps[first])}{beside}."
        found.append(Finding("inertia.below", told, {run: gaps[run] for run in behind}))
    if gaps and not found:
        told = f"Whether text and visual tokens turn differently is {OPEN} in every {what[:-1]}."
        found.append(Finding(f"inertia.{OPEN}", told, gaps))
    return found


def _foremost(numbers: Mapping[str, Estimate]) -> list[str]:
    """The runs that no other lies beyond, by falling number."""
    runs = sorted(numbers, key=lambda run: -numbers[run].value)
    wide = widened_for_pairs(numbers)
    return [run for run in runs if not any(o.lies_beyond(wide[run]) for o in wide.values())]


def listed(runs: Sequence[str], told: Mapping[str, str] | None = None) -> str:
    """Some of them by name, each with what is told of it."""
    names = [f"{run} ({told[run]})" if told else run for run in runs[:_NAMED]]
    return _and([*names, *([f"{len(runs) - _NAMED} more"] if len(runs) > _NAMED else [])])


def _and(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if names[1:] else names[0]


def _norm(ratio: Ratio) -> str:
    """``82 x the norm of text``."""
    other = {0: "about the norm of text", None: f"a norm {OPEN} against text"}
    return other.get(ratio.state) or f"{times(ratio.value)} the norm of text"


def _radians(gap: Estimate) -> str:
    value, *ends = of_one_size([gap.value, *([gap.low, gap.high] if gap.has_interval else [])])
    interval = f" [{', '.join(ends)}]" if ends else ""
    return f"{value}{interval} radians a layer"
