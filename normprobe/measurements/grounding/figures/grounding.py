"""How far ahead the visual tokens are that a word means, by layer: cosine and attention score."""

import pandas as pd
from matplotlib.figure import Figure

from normprobe.measurements.grounding.figures.gap_panels import gap_panels

TABLES = ("grounding",)


def figure(title: str, grounding: pd.DataFrame) -> Figure:
    """Cosine and score gap by layer, with 95 % intervals over images.

    Args:
        title: the figure's title.
        grounding: ``grounding.csv``.
    """
    return gap_panels(title, grounding.assign(run=""), [""])
