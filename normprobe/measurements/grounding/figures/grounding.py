"""How far ahead the visual tokens are that a word means, by layer: cosine and attention score."""

import pandas as pd
from matplotlib.figure import Figure

from normprobe.measurements.grounding.figures.gap_panels import gap_panels
from normprobe.report.figures.lines import Given

TABLES = ("grounding",)


def figure(title: str, grounding: pd.DataFrame, ax: Given = None) -> Figure:
    """Cosine and score gap by layer, with 95 % intervals and bands over images."""
    return gap_panels(title, grounding.assign(run=""), [""], ax)
