"""Runs of ``embeddings`` side by side: what ranks them, and how they are shown."""

from math import nan

import pandas as pd
from matplotlib.figure import Figure

from normprobe.report.dots import figure_of_runs
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given
from normprobe.report.figures.style import GROUP_LOOKS
from normprobe.schema import BASE, NONZERO_ROWS, SPECIAL, TEXT, VISUAL

#: Header and column of each number of the ranking.
COLUMNS = {
    "loudest": "loudest_ratio",
    "visual": "visual_ratio",
    "mean": "text_norm",
    "std": "text_std",
    "base mean": "base_norm",
}
NOTES = (
    "Non-zero rows. loudest: largest / mean norm of the text table; visual: mean",
    "norm of the visual table / that of the text table. Ranked by loudest.",
)

#: The first of them, in words.
RANKED = "largest / mean norm of the text table"
#: What the intervals need of the sample rows: there are neither.
ROW_COLUMNS = ()


def drawings(compare: pd.DataFrame) -> list[Drawing]:
    """The figures of ``compare.csv``."""
    del compare
    return [Drawing("compare_embeddings", ("compare",), draw_runs)]


def draw_runs(title: str, compare: pd.DataFrame, ax: Given = None) -> Figure:
    """Non-zero rows of the text, visual and base tables, all runs on one axis."""
    looks = {TEXT: GROUP_LOOKS[TEXT], VISUAL: GROUP_LOOKS[VISUAL], BASE: GROUP_LOOKS[SPECIAL]}
    rows = compare[compare["rows"] == NONZERO_ROWS]
    return figure_of_runs(title, rows.assign(group=rows["table"], panel="non-zero rows"), looks, ax)


def measures(embeddings: pd.DataFrame, rows: pd.DataFrame | None = None) -> dict[str, float]:
    """How far the rows of one run's tables spread, non-zero rows alone."""
    del rows
    nonzero = embeddings[embeddings["rows"] == NONZERO_ROWS].set_index("table")
    text = float(nonzero["norm_mean"].get(TEXT, nan))
    return {
        "loudest_ratio": float(nonzero["norm_max"].get(TEXT, nan)) / text,
        "visual_ratio": float(nonzero["norm_mean"].get(VISUAL, nan)) / text,
        "text_norm": text,
        "text_std": float(nonzero["norm_std"].get(TEXT, nan)),
        "base_norm": float(nonzero["norm_mean"].get(BASE, nan)),
    }
