"""Rows of the embedding tables, run by run."""

import pandas as pd
from matplotlib.figure import Figure

from normprobe.report.figures.dots import dot_panels
from normprobe.report.figures.lines import Given
from normprobe.report.figures.style import GROUP_LOOKS
from normprobe.schema import BASE, NONZERO_ROWS, SPECIAL, TEXT, VISUAL

TABLES = ("compare",)


def figure(title: str, compare: pd.DataFrame, ax: Given = None) -> Figure:
    """Non-zero rows of the text, visual and base tables, all runs on one axis."""
    looks = {TEXT: GROUP_LOOKS[TEXT], VISUAL: GROUP_LOOKS[VISUAL], BASE: GROUP_LOOKS[SPECIAL]}
    rows = compare[compare["rows"] == NONZERO_ROWS]
    return dot_panels(title, rows.assign(group=rows["table"], panel="non-zero rows"), looks, ax)
