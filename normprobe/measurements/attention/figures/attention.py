"""How much text attends to the image in each layer, how widely, and how well to the target."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from normprobe.report.figures.glyphs import drawable
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    SERIES_COLORS,
    asks_for_log,
    mark_layers,
    new_figure,
    use_log,
)

TABLES = ("attention",)

_HEIGHT = 2.7  # inches
#: Of each query; the first is all text.
_LOOKS = tuple(zip(SERIES_COLORS, "so^DvPX", ("-", "--", "-.", ":", "--", "-.", ":"), strict=True))

_BAND = Patch(color=_LOOKS[0][0], alpha=0.15, linewidth=0, label="std over heads and tokens")


def figure(title: str, attention: pd.DataFrame) -> Figure:
    """Share of attention on visual tokens, entropy over them, and signal-to-noise if there is any.

    Args:
        title: the figure's title.
        attention: ``attention.csv``.
    """
    with_target = attention["signal_to_noise"].notna().any()
    drawing = new_figure(DOUBLE_WIDTH, _HEIGHT, title)
    panels = list(drawing.subplots(1, 3 if with_target else 2))
    share, entropy = panels[:2]
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
        target = panels[2]
        target.set_title("(c) target region / rest (1: even)", loc="left")
        _draw(target, attention, "signal_to_noise")
        values = attention["signal_to_noise"].dropna()
        if asks_for_log(values):
            use_log(target, "y", values)
        else:
            target.set_ylim(0, max(1.1, 1.08 * float(values.max())))
        target.axhline(1.0, color="0.4", linewidth=0.9, zorder=0)
    for axes in panels:
        mark_layers(axes, int(attention["layer"].max()))
        axes.set_xlim(left=0.6)
    handles = [*share.get_legend_handles_labels()[0], _BAND]
    drawing.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 5))
    return drawing


def _draw(axes: Axes, attention: pd.DataFrame, column: str, band: str | None = None) -> None:
    """A line a query; the band is a standard deviation over heads and tokens to either side."""
    for place, (query, rows) in enumerate(attention.groupby("query", sort=False)):
        color, marker, style = _LOOKS[place % len(_LOOKS)]
        rows = rows[rows[column].notna()].sort_values("layer")
        axes.plot(
            rows["layer"],
            rows[column],
            label=drawable(str(query)),
            color=color,
            marker=marker,
            linestyle=style,
            markevery=max(1, len(rows) // 12),
        )
        if band is not None and place == 0:
            low, high = rows[column] - rows[band], rows[column] + rows[band]
            axes.fill_between(
                rows["layer"], low.clip(0, 1), high.clip(0, 1), color=color, alpha=0.15, linewidth=0
            )
