"""The tables of a comparison: runs below each other, and their ranking."""

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import pandas as pd

from normprobe.report.ratio_words import Estimate, Ratio

AnyEstimate = TypeVar("AnyEstimate", bound=Estimate)


def joined(tables: Sequence[pd.DataFrame], labels: Sequence[str]) -> pd.DataFrame:
    """The tables below each other, each row labelled with its run, in the order given.

    Args:
        tables: the main table of each run.
        labels: unique, one a table.

    Returns:
        The rows of compare.csv: ``run``, then the columns of the tables.
    """
    parts = [table.assign(run=label) for table, label in zip(tables, labels, strict=True)]
    whole = pd.concat(parts, ignore_index=True)
    return whole[["run", *whole.columns.drop("run")]]


def ranking(
    measures: Sequence[Mapping[str, float]],
    labels: Sequence[str],
    steps: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Runs by falling disparity, those of a training by step.

    The first measure is a ratio and ranks by how far it is from 1, whichever way. Runs share a rank
    where they are not told apart: a rank is 1 and the number of runs whose interval lies wholly
    beyond. Without intervals the numbers themselves decide.

    Args:
        measures: the numbers of each run by column, with ``<column>_ci_low`` and ``_ci_high`` where
            they have intervals.
        labels: one a run.
        steps: of a training, one a run.

    Returns:
        The rows of ranking.csv: rank, inertia_rank (by ``inertia_gap``, where there is one), run,
        step (of a training) and the measures. Runs without the first measure have no rank and, but
        for a training, come last.
    """
    table = pd.DataFrame(measures)
    first = str(table.columns[0])
    table.insert(0, "run", list(labels))
    disparity = {run: ratio.size for run, ratio in numbers_of(table, first, Ratio).items()}
    order = pd.Series([disparity[run].value for run in labels])
    if steps is not None:
        table.insert(1, "step", list(steps))
        order = pd.Series([-float(step) for step in steps])
    if "inertia_gap" in table:
        gaps = numbers_of(table, "inertia_gap", Estimate)
        table.insert(0, "inertia_rank", _ranks(gaps))
    table.insert(0, "rank", _ranks(disparity))
    places = order.sort_values(ascending=False, kind="stable", na_position="last").index
    return table.loc[places].reset_index(drop=True)


def numbers_of(
    ranking: pd.DataFrame, column: str, kind: type[AnyEstimate]
) -> dict[str, AnyEstimate]:
    """A measure by run, with its interval, as far as it has one."""
    columns = [column, f"{column}_ci_low", f"{column}_ci_high"]
    numbers = ranking.reindex(columns=columns).astype(float).itertuples(index=False)
    return {str(run): kind(*row) for run, row in zip(ranking["run"], numbers, strict=True)}


def _ranks(numbers: Mapping[str, Estimate]) -> "pd.Series[int]":
    ranks = [
        pd.NA
        if math.isnan(number.value)
        else 1 + sum(other.lies_beyond(number) for other in numbers.values())
        for number in numbers.values()
    ]
    return pd.Series(ranks, dtype="Int64")
