"""Runs over each other: norm and cosine before and after a change (Figure 4)."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normprobe.report.figures.lines import Given, draw_line, legend_below, panels
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    GROUP_LOOKS,
    asks_for_log,
    drawable,
    mark_layers,
    series_look,
    use_log,
)
from normprobe.schema import TEXT, VISUAL

TABLES = ("compare",)

_HEIGHT = 3.2  # inches


def figure(title: str, compare: pd.DataFrame, ax: Given = None) -> Figure:
    """L2 norm and cosine by layer; a colour a run, a line style a token group."""
    runs = [str(run) for run in dict.fromkeys(compare["run"])]
    drawing, grid = panels(title, DOUBLE_WIDTH, _HEIGHT, (1, 2), ax)
    norm, cosine = grid[0]
    norm.set_title("(a) L2 norm of hidden state", loc="left")
    cosine.set_title("(b) cosine between layer input and output", loc="left")
    for axes, metric in ((norm, "norm"), (cosine, "cosine")):
        _draw(axes, compare, runs, metric)
        mark_layers(axes, int(compare["layer"].max()))
    values = compare.loc[compare["group"].isin([VISUAL, TEXT]), "norm_mean"]
    if asks_for_log(values):
        use_log(norm, "y", values)
    else:
        norm.set_ylim(bottom=0)
    cosine.set_ylim(top=1.0)
    handles = [
        Line2D([], [], **GROUP_LOOKS[group]._replace(color="0.3", marker="")._asdict(), label=group)
        for group in (VISUAL, TEXT)
    ]
    handles += [
        Line2D([], [], **series_look(place)._replace(linestyle="-")._asdict(), label=drawable(run))
        for place, run in enumerate(runs)
    ]
    legend_below(drawing, grid, handles)
    return drawing


def _draw(axes: Axes, compare: pd.DataFrame, runs: list[str], metric: str) -> None:
    for place, run in enumerate(runs):
        for group in (TEXT, VISUAL):
            rows = compare[(compare["run"].astype(str) == run) & (compare["group"] == group)]
            rows = rows[rows[f"{metric}_mean"].notna()].sort_values("layer")
            look = series_look(place)._replace(linestyle=GROUP_LOOKS[group].linestyle)
            draw_line(axes, rows, f"{metric}_mean", look, "", clip_on=False)
