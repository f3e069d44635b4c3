"""Norm and cosine against depth: does the gap persist, and who stays the same longest?"""

import pandas as pd
from matplotlib.figure import Figure

from normprobe.measurements.layers.figures.by_layer import (
    add_legend,
    drawn_values,
    two_panels,
    use_log_if_wide,
)
from normprobe.report.figures.lines import Given

TABLES = ("layers",)


def figure(title: str, layers: pd.DataFrame, ax: Given = None) -> Figure:
    """L2 norm of the hidden state, and cosine between layer input and output."""
    drawing, grid = two_panels(title, layers, "norm", "cosine", ax)
    norm, cosine = grid[0]
    use_log_if_wide(norm, layers, "norm")
    norm.set_title("(a) L2 norm of hidden state", loc="left")
    cosine.set_title("(b) cosine between layer input and output", loc="left")
    values = drawn_values(layers, "cosine")
    lowest = values.min() if values.size else 0.0
    # The top is exactly 1, the largest cosine; lines that run along it are not cut in half.
    cosine.set_ylim(lowest - 0.05 * max(1 - lowest, 1e-3), 1.0)
    for line in cosine.get_legend_handles_labels()[0]:
        line.set_clip_on(False)
    add_legend(drawing, grid)
    return drawing
