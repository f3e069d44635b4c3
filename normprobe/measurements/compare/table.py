"""The tables of a comparison: runs below each other, and their ranking."""

from collections.abc import Callable, Sequence

import pandas as pd


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
    measures_of: Callable[[pd.DataFrame], dict[str, float]],
    tables: Sequence[pd.DataFrame],
    labels: Sequence[str],
) -> pd.DataFrame:
    """Runs by falling disparity.

    Args:
        measures_of: the numbers of one run, from its main table; the first number ranks.
        tables: the main table of each run.
        labels: one a table.

    Returns:
        The rows of ranking.csv: rank, run and the measures. Runs without the first
        measure come last, without a rank.
    """
    measures = pd.DataFrame([measures_of(table) for table in tables])
    measures.insert(0, "run", list(labels))
    first = measures.columns[1]
    measures = measures.sort_values(first, ascending=False, kind="stable", na_position="last")
    place = measures[first].rank(ascending=False, method="min").astype("Int64")
    measures.insert(0, "rank", place)
    if "inertia_gap" in measures:
        inertia = measures["inertia_gap"].rank(ascending=False, method="min").astype("Int64")
        measures.insert(1, "inertia_rank", inertia)
    return measures.reset_index(drop=True)
