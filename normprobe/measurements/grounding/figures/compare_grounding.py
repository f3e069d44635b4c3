"""Gaps run by run: before and after a norm behind the projector, for example."""

import pandas as pd
from matplotlib.figure import Figure

from normprobe.measurements.grounding.figures.gap_panels import gap_panels

TABLES = ("compare",)


def figure(title: str, compare: pd.DataFrame) -> Figure:
    """Cosine and score gap by layer, a colour a run.

    Args:
        title: the figure's title.
        compare: ``compare.csv`` of grounding runs.
    """
    return gap_panels(title, compare, [str(run) for run in dict.fromkeys(compare["run"])])
