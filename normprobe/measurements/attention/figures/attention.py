"""How much text attends to the image in each layer, how widely, and how well to the target."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from normprobe.report.figures.lines import Given, draw_line, entries, legend_below, panels
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    asks_for_log,
    drawable,
    mark_layers,
    series_look,
    use_log,
)

TABLES = ("attention",)

_HEIGHT = 2.7  # inches
_BAND = Patch(
    color=series_look(0).color, alpha=0.15, linewidth=0, label="std over heads and tokens"
)


def figure(title: str, attention: pd.DataFrame, ax: Given = None) -> Figure:
    """Share of attention on visual tokens, its entropy, and signal-to-noise if there is any."""
    with_target = attention["signal_to_noise"].notna().any()
    drawing, grid = panels(title, DOUBLE_WIDTH, _HEIGHT, (1, 3 if with_target else 2), ax)
    share, entropy = grid[0, :2]
    share.set_title("(a) attention on visual tokens", loc="left")
    entropy.set_title("(b) entropy over them (1: even)", loc="left")
    _draw(share, attention, "share_mean", band="share_std")
    even = attention[attention["query"] == attention["query"].iloc[0]]
    share.plot(
        even["layer"], even["even_share_mean"], color="0.4", linewidth=0.9, label="spread evenly"
    )
    share.set_ylim(0, 1)
    _draw(entropy, attention, "entropy_mean", band="entropy_std")
    entropy.set_ylim(0, 1)
    if with_target:
        target = grid[0, 2]
        target.set_title("(c) target region / rest (1: even)", loc="left")
        _draw(target, attention, "signal_to_noise")
        values = attention["signal_to_noise"].dropna()
        if asks_for_log(values):
            use_log(target, "y", values)
        else:
            target.set_ylim(0, max(1.1, 1.08 * float(values.max())))
        target.axhline(1.0, color="0.4", linewidth=0.9, zorder=0)
    for axes in grid[0]:
        mark_layers(axes, int(attention["layer"].max()))
        axes.set_xlim(left=0.6)
    legend_below(drawing, grid, [*entries(grid).values(), _BAND])
    return drawing


def _draw(axes: Axes, attention: pd.DataFrame, column: str, band: str | None = None) -> None:
    """A line a query; the band is a standard deviation over heads and tokens to either side."""
    for place, (query, rows) in enumerate(attention.groupby("query", sort=False)):
        look = series_look(place)
        rows = rows[rows[column].notna()].sort_values("layer")
        draw_line(axes, rows, column, look, drawable(str(query)), clip_on=False)
        if band is not None and place == 0:
            low, high = rows[column] - rows[band], rows[column] + rows[band]
            ends = low.clip(0, 1), high.clip(0, 1)
            axes.fill_between(rows["layer"], *ends, color=look.color, alpha=0.15, linewidth=0)
