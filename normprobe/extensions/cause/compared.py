"""Runs of ``cause`` side by side: before and after a training with a norm, for example."""

import numpy as np
import pandas as pd
from markupsafe import Markup

from normprobe.extensions.cause.answer_figure import named_interventions
from normprobe.extensions.cause.figures import draw_effects, known_outcomes
from normprobe.extensions.cause.shown import COLUMN_OF, effect_cell
from normprobe.report.figures.draw import Drawing
from normprobe.report.page.blocks import printed
from normprobe.report.ratio_words import Estimate, Ratio, estimate_of
from normprobe.report.readable import ReadableTable
from normprobe.tidy import select

#: Header and column of each number of the ranking.
COLUMNS = {
    "x frozen": "freeze_ratio",
    "frozen (nats)": "freeze_nll",
    "frozen (share)": "freeze_accuracy",
    "removed": "share_removed",
    "grey (nats)": "blank_nll",
}
NOTES = (
    "x frozen: e^(nats), how much less probable a token of the right answer is with",
    "all layers frozen; its |log| ranks. frozen, grey: change of NLL and accuracy, of",
    "NLL by a grey picture. removed: of the difference in turning, by norms.",
)
#: The first of them, in words.
RANKED = "probability of a token of the answer, untouched / frozen"
#: None: the table has the intervals.
ROW_COLUMNS = ()


def drawings(_compare: pd.DataFrame) -> list[Drawing]:
    """The figures of ``compare.csv``."""
    return [Drawing("compare_cause", ("compare",), draw_effects)]


def measures(cause: pd.DataFrame, _rows: pd.DataFrame | None = None) -> dict[str, Estimate]:
    """What turning is worth to the answers of one run, and what norms have to do with it."""
    frozen = estimate_of(cause, "nll", intervention="freeze")
    return {
        "freeze_ratio": Ratio(*np.exp([frozen.value, frozen.low, frozen.high]).tolist()),
        "freeze_nll": frozen,
        "freeze_accuracy": estimate_of(cause, "accuracy", intervention="freeze"),
        "share_removed": estimate_of(cause, "share_removed", intervention="norm-at-layer"),
        "blank_nll": estimate_of(cause, "nll", intervention="blank"),
    }


def section(compare: pd.DataFrame) -> list[Markup]:
    """The effects of each intervention, a column a run."""
    return [
        block
        for quantity in known_outcomes(compare)
        for block in printed(_beside(compare, quantity))
    ]


def _beside(compare: pd.DataFrame, quantity: str) -> ReadableTable:
    """One outcome: interventions down, runs across."""
    rows = select(compare, quantity, layer=0)
    runs = list(dict.fromkeys(rows["run"]))
    cells = [
        [str(name), *(effect_cell(of_one[of_one["run"] == run], quantity) for run in runs)]
        for name, of_one in rows.assign(name=named_interventions(rows)).groupby("name", sort=False)
    ]
    headers = [("",), *((str(run),) for run in runs)]
    title = COLUMN_OF[quantity][0]
    return ReadableTable(headers, cells, [False, *[True] * len(runs)], title=title)
