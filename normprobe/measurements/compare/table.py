"""The tables of a comparison: runs below each other, and their ranking."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import TypeVar

import pandas as pd

from normprobe.report.ratio_words import Estimate, Ratio
from normprobe.statistics.bootstrap import LEVEL

AnyEstimate = TypeVar("AnyEstimate", bound=Estimate)


def joined(
    tables: Sequence[pd.DataFrame], labels: Sequence[str], steps: Sequence[int] | None = None
) -> pd.DataFrame:
    """The tables below each other, each row labelled with its run, in the order given."""
    runs = pd.DataFrame({"run": list(labels)} | ({} if steps is None else {"step": list(steps)}))
    runs = runs.loc[runs.index.repeat([len(table) for table in tables])].reset_index(drop=True)
    return pd.concat([runs, pd.concat(tables, ignore_index=True)], axis=1)


def ranking(
    measures: Sequence[Mapping[str, float]],
    labels: Sequence[str],
    steps: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Runs by falling disparity, those of a training by step.

    The first measure is a ratio and ranks by how far it is from 1, whichever way. A rank is 1 and
    the number of runs with a larger number. Its interval says which ranks the intervals of the
    numbers leave open: from 1 and the number of runs that lie wholly beyond, to the number of runs
    that do not lie wholly behind. Without intervals the numbers themselves decide.
    """
    table = pd.DataFrame(measures)
    first = str(table.columns[0])
    table.insert(0, "run", list(labels))
    disparity = {run: ratio.size for run, ratio in numbers_of(table, first, Ratio).items()}
    order = pd.Series([disparity[run].value for run in labels])
    if steps is not None:
        table.insert(1, "step", list(steps))
        order = pd.Series([-float(step) for step in steps])
    ranks = _ranks("rank", disparity)
    if "inertia_gap" in table:
        ranks |= _ranks("inertia_rank", numbers_of(table, "inertia_gap", Estimate))
    table = pd.concat([pd.DataFrame(ranks, dtype="Int64"), table], axis=1)
    places = order.sort_values(ascending=False, kind="stable", na_position="last").index
    return table.loc[places].reset_index(drop=True)


def numbers_of(
    ranking: pd.DataFrame, column: str, kind: type[AnyEstimate]
) -> dict[str, AnyEstimate]:
    """A measure by run, with its interval, as far as it has one."""
    columns = [column, f"{column}_ci_low", f"{column}_ci_high"]
    numbers = ranking.reindex(columns=columns).astype(float).itertuples(index=False)
    return {str(run): kind(*row) for run, row in zip(ranking["run"], numbers, strict=True)}


def told_apart(numbers: Mapping[str, AnyEstimate]) -> dict[str, AnyEstimate]:
    """With intervals that overlap for all pairs of equal runs at once, in 95 % of comparisons.

    The intervals of two equal numbers overlap far more often than in 95 %, those of many pairs do
    not: they are widened from where Bonferroni over the pairs asks for it.
    """
    pairs = max(1, len(numbers) * (len(numbers) - 1) // 2)
    return {
        run: number.widened(max(1.0, _over(pairs) / math.sqrt(2)))
        for run, number in numbers.items()
    }


def told_from_zero(numbers: Mapping[str, Estimate]) -> dict[str, int | None]:
    """``Estimate.sign`` of each, by intervals that hold for all at once; without one, its own."""
    return {
        run: number.widened(_over(len(numbers))).sign
        if number.has_interval
        else (number.value > 0) - (number.value < 0)
        for run, number in numbers.items()
    }


def _over(comparisons: int) -> float:
    """How much wider an interval is that holds for so many comparisons together (Bonferroni)."""
    quantile = NormalDist().inv_cdf
    return quantile(1 - (1 - LEVEL) / (2 * comparisons)) / quantile((1 + LEVEL) / 2)


def _ranks(name: str, numbers: Mapping[str, Estimate]) -> dict[str, list[int | None]]:
    """The ranks of some numbers and their intervals, by column."""
    numbers = told_apart(numbers)
    held = [number for number in numbers.values() if not math.isnan(number.value)]
    ranks: dict[str, list[int | None]] = {name: [], f"{name}_low": [], f"{name}_high": []}
    for own in numbers.values():
        larger = sum(other.value > own.value for other in held)
        beyond = sum(other.lies_beyond(own) for other in held)
        not_behind = sum(not own.lies_beyond(other) for other in held)
        known = not math.isnan(own.value)
        for column, rank in zip(ranks, (1 + larger, 1 + beyond, not_behind), strict=True):
            ranks[column].append(rank if known else None)
    return ranks
