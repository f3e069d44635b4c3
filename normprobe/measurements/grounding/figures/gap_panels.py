"""The gaps of one run or several against depth: a panel a quantity."""

import pandas as pd
from matplotlib.figure import Figure

from normprobe.report.figures.lines import (
    Given,
    draw_column,
    ends_drawn,
    entries,
    legend_below,
    panels,
)
from normprobe.report.figures.style import DOUBLE_WIDTH, drawable, mark_layers, series_look

_HEIGHT = 2.7  # inches

#: Quantity -> what its gap is.
PANELS = {
    "cosine": "cosine with the word, inside - outside",
    "score": "attention score of the word, inside - outside",
}


def gap_panels(title: str, grounding: pd.DataFrame, runs: list[str], ax: Given) -> Figure:
    """Cosine and score gap by layer, each with its 95 % interval and band."""
    drawing, grid = panels(title, DOUBLE_WIDTH, _HEIGHT, (1, len(PANELS)), ax)
    for axes, letter, (quantity, label) in zip(grid[0], "ab", PANELS.items(), strict=True):
        axes.set_title(f"({letter}) {label}", loc="left")
        axes.axhline(0.0, color="0.4", linewidth=0.9, zorder=0)
        column = f"{quantity}_gap"
        for place, run in enumerate(runs):
            rows = grounding[(grounding["run"] == run) & grounding[column].notna()]
            look = series_look(place)._replace(linestyle="-")
            draw_column(axes, rows, column, look, drawable(run), markersize=4)
        mark_layers(axes, int(grounding["layer"].max()))
    handles = list(entries(grid).values()) if len(runs) > 1 else []
    legend_below(drawing, grid, [*handles, *ends_drawn(grid.flat)])
    return drawing
