"""Runs of ``cause`` side by side: before and after a training with a norm, for example."""

import math

import numpy as np
import pandas as pd

from normprobe.measurements.cause.figures import OUTCOMES, draw_effects, known_outcomes, named
from normprobe.measurements.cause.words import chosen, effects, in_words, rounded
from normprobe.report.figures.draw import Drawing
from normprobe.report.page.blocks import printed
from normprobe.report.page.markup import Markup
from normprobe.report.ratio_words import Estimate, with_ends
from normprobe.report.readable import MISSING, ReadableTable

#: Header and column of each number of the ranking.
COLUMNS = {
    "x frozen": "freeze_ratio",
    "frozen (nats)": "freeze_nll",
    "frozen (share)": "freeze_accuracy",
    "removed": "share_removed",
    "grey (nats)": "blank_nll",
}
NOTES = (
    "x frozen: e^(nats), by how much less probable a token of the right answer is where",
    "visual states stay as they enter; its |log| ranks. frozen, grey: change of NLL and",
    "accuracy, all layers frozen, a grey picture. removed: of the difference of angles,",
    "by reading visual states as loud as text.",
)
#: The first of them, in words.
RANKED = "probability of a token of the answer, untouched / frozen"
#: None: the table has the intervals.
ROW_COLUMNS = ()


def drawings(compare: pd.DataFrame) -> list[Drawing]:
    """The figures of ``compare.csv``."""
    del compare
    return [Drawing("compare_cause", ("compare",), draw_effects)]


def measures(cause: pd.DataFrame, rows: pd.DataFrame | None = None) -> dict[str, float]:
    """What turning is worth to the answers of one run, and what norms have to do with it."""
    del rows
    frozen = _effect(cause, "freeze", "nll")
    ratio = Estimate(*np.exp([frozen.value, frozen.low, frozen.high]).tolist())
    return with_ends(
        {
            "freeze_ratio": ratio,
            "freeze_nll": frozen,
            "freeze_accuracy": _effect(cause, "freeze", "accuracy"),
            "share_removed": _effect(cause, "norm-at-layer", "share_removed"),
            "blank_nll": _effect(cause, "blank", "nll"),
        }
    )


def _effect(cause: pd.DataFrame, intervention: str, quantity: str) -> Estimate:
    return next(iter(effects(chosen(cause, intervention, quantity))), Estimate(math.nan))


def section(compare: pd.DataFrame) -> list[Markup]:
    """The effects of each intervention, a column a run."""
    return [
        block
        for quantity in known_outcomes(compare)
        for block in printed(_beside(compare, quantity))
    ]


def _beside(compare: pd.DataFrame, quantity: str) -> ReadableTable:
    """One outcome: interventions down, runs across."""
    rows = compare[(compare["quantity"] == quantity) & (compare["layer"] == 0)]
    rows = rows.assign(name=named(rows), told=_told(rows))
    table = rows.pivot_table("told", "name", "run", "first", sort=False).fillna(MISSING)
    headers = [("",), *((str(run),) for run in table.columns)]
    cells = [[str(name), *map(str, row)] for name, *row in table.itertuples()]
    return ReadableTable(
        headers, cells, [False, *[True] * len(table.columns)], title=OUTCOMES[quantity]
    )


def _told(rows: pd.DataFrame) -> list[str]:
    told = []
    for number in effects(rows):
        numbers, decimals = rounded([number])
        told.append(in_words(numbers, decimals))
    return told
