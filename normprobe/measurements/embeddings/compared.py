"""Runs of ``embeddings`` side by side: what ranks them, and how they are shown."""

import pandas as pd
from matplotlib.figure import Figure

from normprobe.measurements.embeddings.words import of_nonzero
from normprobe.report.dots import figure_of_runs
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given
from normprobe.report.figures.style import GROUP_LOOKS
from normprobe.report.ratio_words import Estimate
from normprobe.schema import BASE, NONZERO_ROWS, SPECIAL, TEXT, VISUAL
from normprobe.tidy import select

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


def drawings(_compare: pd.DataFrame) -> list[Drawing]:
    """The figures of ``compare.csv``."""
    return [Drawing("compare_embeddings", ("compare",), draw_runs)]


def draw_runs(title: str, compare: pd.DataFrame, ax: Given = None) -> Figure:
    """Non-zero rows of the text, visual and base tables, all runs on one axis."""
    looks = {TEXT: GROUP_LOOKS[TEXT], VISUAL: GROUP_LOOKS[VISUAL], BASE: GROUP_LOOKS[SPECIAL]}
    rows = select(compare, "norm", rows=NONZERO_ROWS)
    return figure_of_runs(title, rows.assign(group=rows["table"], panel="non-zero rows"), looks, ax)


def measures(embeddings: pd.DataFrame, _rows: pd.DataFrame | None = None) -> dict[str, Estimate]:
    """How far the rows of one run's tables spread, non-zero rows alone."""
    text = of_nonzero(embeddings, TEXT)
    numbers = {
        "loudest_ratio": of_nonzero(embeddings, TEXT, "norm_max") / text,
        "visual_ratio": of_nonzero(embeddings, VISUAL) / text,
        "text_norm": text,
        "text_std": of_nonzero(embeddings, TEXT, estimate="std"),
        "base_norm": of_nonzero(embeddings, BASE),
    }
    return {name: Estimate(number) for name, number in numbers.items()}
