"""Attention of all text to the image, run by run: how much, how widely, how high in the image."""

import pandas as pd
from matplotlib.figure import Figure

from normprobe.report.figures.glyphs import drawable
from normprobe.report.figures.style import DOUBLE_WIDTH, SERIES_COLORS, mark_layers, new_figure

TABLES = ("compare",)

_HEIGHT = 2.8  # inches
_MARKS = "so^DvPX"
_PANELS = (
    ("share_mean", "(a) attention on visual tokens"),
    ("entropy_mean", "(b) entropy over them (1: even)"),
    ("vertical_center", "(c) vertical center"),
)


def figure(title: str, compare: pd.DataFrame) -> Figure:
    """A line a run; the query of all text.

    Args:
        title: the figure's title.
        compare: ``attention.csv`` of each run below each other, with a column ``run``.
    """
    drawing = new_figure(DOUBLE_WIDTH, _HEIGHT, title)
    panels = drawing.subplots(1, len(_PANELS))
    first = compare["query"].iloc[0]
    for axes, (column, words) in zip(panels, _PANELS, strict=True):
        axes.set_title(words, loc="left")
        of_text = compare[compare["query"] == first]
        if column not in of_text:
            continue
        for place, (run, rows) in enumerate(of_text.groupby("run", sort=False)):
            rows = rows[rows[column].notna()].sort_values("layer")
            axes.plot(
                rows["layer"],
                rows[column],
                label=drawable(str(run)),
                color=SERIES_COLORS[place % len(SERIES_COLORS)],
                marker=_MARKS[place % len(_MARKS)],
                markevery=max(1, len(rows) // 12),
            )
        mark_layers(axes, int(compare["layer"].max()))
        axes.set_xlim(left=0.6)
        axes.set_ylim(0, 1)
    panels[2].invert_yaxis()  # the top of the image is 0
    panels[2].set_yticks([0, 0.5, 1], ["top", "middle", "bottom"])
    handles, labels = panels[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower center", ncols=min(len(handles), 4))
    return drawing
