"""Runs over each other: norm and cosine before and after a change (Figure 4)."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normprobe.report.figures.glyphs import drawable
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    GROUP_LOOKS,
    SERIES_COLORS,
    asks_for_log,
    mark_layers,
    new_figure,
    use_log,
)
from normprobe.schema import TEXT, VISUAL

TABLES = ("compare",)

_HEIGHT = 3.0  # inches, without the legend
_LEGEND_COLUMNS = 3


def figure(title: str, compare: pd.DataFrame) -> Figure:
    """L2 norm and cosine by layer; a colour a run, a line style a token group.

    Args:
        title: the figure's title.
        compare: ``compare.csv`` of layers runs.
    """
    runs = list(dict.fromkeys(compare["run"]))
    entries = len(runs) + 2
    rows = -(-entries // _LEGEND_COLUMNS)
    drawing = new_figure(DOUBLE_WIDTH, _HEIGHT + 0.18 * rows, title)
    norm, cosine = drawing.subplots(1, 2)
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
    for line in cosine.get_lines():
        line.set_clip_on(False)
    handles = [
        Line2D([], [], **GROUP_LOOKS[group]._replace(color="0.3", marker="")._asdict(), label=group)
        for group in (VISUAL, TEXT)
    ]
    handles += [
        Line2D([], [], color=_color(place), label=drawable(str(run)))
        for place, run in enumerate(runs)
    ]
    drawing.legend(handles=handles, loc="outside lower center", ncols=_LEGEND_COLUMNS)
    return drawing


def _draw(axes: Axes, compare: pd.DataFrame, runs: list[str], metric: str) -> None:
    for place, run in enumerate(runs):
        for group in (TEXT, VISUAL):
            rows = compare[(compare["run"] == run) & (compare["group"] == group)]
            rows = rows[rows[f"{metric}_mean"].notna()].sort_values("layer")
            axes.plot(
                rows["layer"],
                rows[f"{metric}_mean"],
                color=_color(place),
                linestyle=GROUP_LOOKS[group].linestyle,
                zorder=3,
            )


def _color(place: int) -> str:
    return SERIES_COLORS[place % len(SERIES_COLORS)]
