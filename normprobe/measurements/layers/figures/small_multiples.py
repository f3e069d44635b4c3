"""One panel a run on the same axes: who stays the same longest, model by model (Figure 3)."""

import pandas as pd
from matplotlib.figure import Figure

from normprobe.measurements.layers.figures.by_layer import add_legend, draw_metric, drawn_values
from normprobe.report.figures.lines import Given, panels
from normprobe.report.figures.style import DOUBLE_WIDTH, mark_layers, shortened

TABLES = ("compare",)

_COLUMNS = 4
_HEIGHT = 1.9  # inches a row of panels
_LETTERS = 88  # of all names of a row


def figure(title: str, compare: pd.DataFrame, ax: Given = None) -> Figure:
    """Cosine between layer input and output, a panel a run, all axes shared."""
    runs = list(dict.fromkeys(compare["run"]))
    columns = min(_COLUMNS, len(runs))
    rows = -(-len(runs) // columns)
    height, shared = _HEIGHT * rows + 0.6, {"sharex": True, "sharey": True}
    drawing, grid = panels(title, DOUBLE_WIDTH, height, (rows, columns), ax, **shared)
    deepest = int(compare["layer"].max())
    places = list(grid.flat)
    longest = round(_LETTERS / columns)
    for axes, run in zip(places, runs, strict=False):
        draw_metric(axes, compare[compare["run"] == run], "cosine", clip_on=False)
        axes.set_title(shortened(str(run), longest), loc="left")
        mark_layers(axes, deepest)
        axes.set_xlabel("")
    for axes in places[len(runs) :]:
        axes.set_axis_off()
    # A panel above an empty place has no other below it: it carries the layers itself.
    for place, axes in enumerate(places[: len(runs)]):
        if place + columns >= len(runs):
            axes.set_xlabel("decoder layer")
            axes.tick_params(labelbottom=True)
    values = drawn_values(compare, "cosine")
    lowest = values.min() if values.size else 0.0
    for axes in places[: len(runs)]:
        axes.set_ylim(lowest - 0.05 * max(1 - lowest, 1e-3), 1.0)
    for row in grid:
        row[0].set_ylabel("cosine, input and output")
    add_legend(drawing, grid)
    return drawing
