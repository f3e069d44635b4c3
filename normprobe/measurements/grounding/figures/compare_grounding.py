"""Gaps run by run: before and after a norm behind the projector, for example."""

import pandas as pd
from matplotlib.figure import Figure

from normprobe.measurements.grounding.figures.gap_panels import gap_panels
from normprobe.report.figures.lines import Given

TABLES = ("compare",)


def figure(title: str, compare: pd.DataFrame, ax: Given = None) -> Figure:
    """Cosine and score gap by layer, a colour a run."""
    runs = [str(run) for run in dict.fromkeys(compare["run"])]
    return gap_panels(title, compare.assign(run=compare["run"].astype(str)), runs, ax)
