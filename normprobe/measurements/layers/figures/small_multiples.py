"""One panel a run on the same axes: who stays the same longest, model by model (Figure 3)."""

import pandas as pd
from matplotlib.figure import Figure

from normprobe.measurements.layers.figures.by_layer import add_legend, draw_metric, drawn_values
from normprobe.report.figures.glyphs import drawable
from normprobe.report.figures.style import DOUBLE_WIDTH, mark_layers, new_figure

TABLES = ("compare",)

_COLUMNS = 4
_HEIGHT = 1.9  # inches a row of panels


def figure(title: str, compare: pd.DataFrame) -> Figure:
    """Cosine between layer input and output, a panel a run, all axes shared.

    Args:
        title: the figure's title.
        compare: ``compare.csv`` of layers runs.
    """
    runs = list(dict.fromkeys(compare["run"]))
    columns = min(_COLUMNS, len(runs))
    rows = -(-len(runs) // columns)
    drawing = new_figure(DOUBLE_WIDTH, _HEIGHT * rows + 0.6, title)
    grid = drawing.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    deepest = int(compare["layer"].max())
    panels = list(grid.flat)
    for axes, run in zip(panels, runs, strict=False):
        draw_metric(axes, compare[compare["run"] == run], "cosine")
        axes.set_title(drawable(str(run)), loc="left")
        mark_layers(axes, deepest)
        axes.set_xlabel("")
        for line in axes.get_lines():
            line.set_clip_on(False)
    for axes in panels[len(runs) :]:
        axes.set_axis_off()
    # A panel above an empty place has no other below it: it carries the layers itself.
    for place, axes in enumerate(panels[: len(runs)]):
        if place + columns >= len(runs):
            axes.set_xlabel("decoder layer")
            axes.tick_params(labelbottom=True)
    values = drawn_values(compare, "cosine")
    lowest = values.min() if values.size else 0.0
    panels[0].set_ylim(lowest - 0.05 * max(1 - lowest, 1e-3), 1.0)
    for row in grid:
        row[0].set_ylabel("cosine, input and output")
    add_legend(drawing, panels[0], compare)
    return drawing
