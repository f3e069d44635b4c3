"""Attention of all text to the image, run by run: how much, how widely, how high in the image."""

import pandas as pd
from matplotlib.figure import Figure

from normprobe.report.figures.lines import Given, draw_line, entries, legend_below, panels
from normprobe.report.figures.style import DOUBLE_WIDTH, drawable, mark_layers, series_look

TABLES = ("compare",)

_HEIGHT = 2.8  # inches
_PANELS = (
    ("share_mean", "(a) attention on visual tokens"),
    ("entropy_mean", "(b) entropy over them (1: even)"),
    ("vertical_center", "(c) vertical center"),
)


def figure(title: str, compare: pd.DataFrame, ax: Given = None) -> Figure:
    """A line a run; the query of all text."""
    drawing, grid = panels(title, DOUBLE_WIDTH, _HEIGHT, (1, len(_PANELS)), ax)
    first = compare["query"].iloc[0]
    for axes, (column, words) in zip(grid[0], _PANELS, strict=True):
        axes.set_title(words, loc="left")
        of_text = compare[compare["query"] == first]
        if column not in of_text:
            continue
        for place, (run, rows) in enumerate(of_text.groupby("run", sort=False)):
            rows = rows[rows[column].notna()].sort_values("layer")
            look = series_look(place)._replace(linestyle="-")
            draw_line(axes, rows, column, look, drawable(str(run)), clip_on=False)
        mark_layers(axes, int(compare["layer"].max()))
        axes.set_xlim(left=0.6)
        axes.set_ylim(0, 1)
    grid[0, 2].invert_yaxis()  # the top of the image is 0
    grid[0, 2].set_yticks([0, 0.5, 1], ["top", "middle", "bottom"])
    legend_below(drawing, grid, list(entries(grid).values()))
    return drawing
