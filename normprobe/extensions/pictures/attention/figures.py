"""What is drawn of ``attention``: layer by layer, head by head, and over each image."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from normprobe.report.charts import Panel, Scale, by_series, draw_panel
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.heat_maps import draw_heatmaps
from normprobe.report.figures.lines import Given, entries, legend_below, panels
from normprobe.report.figures.style import DOUBLE_WIDTH, drawable, series_look
from normprobe.runs.run_folder import RunStore
from normprobe.tidy import select, wide


def drawings(_run: RunStore) -> list[Drawing]:
    """The figures of a run of ``attention``."""
    return [
        Drawing("attention", ("attention",), draw_attention),
        Drawing("heads", ("heads",), draw_heads),
        HEATMAPS,
    ]


# --- layer by layer ------------------------------------------------------------------------------

_HEIGHT = 2.7  # inches
_BAND = Patch(
    color=series_look(0).color, alpha=0.15, linewidth=0, label="std over heads and tokens"
)


def layer_panels(attention: pd.DataFrame) -> list[Panel]:
    """How much of the attention, how widely, and how well to the target: a curve a query."""
    declared: tuple[tuple[str, str, Scale], ...] = (
        ("share", "attention on visual tokens", "signed"),
        ("entropy", "entropy of attention (1: even)", "signed"),
        ("signal_to_noise", "attention in the box / outside", "zero"),
        ("score_gap", "score before the softmax, inside the box - outside", "difference"),
    )
    return [
        Panel(title, by_series(attention, "query", quantity, dashed=True), scale)
        for quantity, title, scale in declared
        if select(attention, quantity)["mean"].notna().any()
    ]


def draw_attention(title: str, attention: pd.DataFrame, ax: Given = None) -> Figure:
    """Share of attention on visual tokens, its entropy, and against the rest if there is a box."""
    attention = attention.assign(query=attention["query"].map(lambda query: drawable(str(query))))
    declared = layer_panels(attention)[:3]
    drawing, grid = panels(title, DOUBLE_WIDTH, _HEIGHT, (1, len(declared)), ax)
    first = attention[attention["query"] == attention["query"].iloc[0]]
    for axes, panel, letter in zip(grid[0], declared, "abc", strict=False):
        axes.set_title(f"({letter}) {panel.title}", loc="left")
        draw_panel(axes, panel, attention, int(attention["layer"].max()), clip_on=False)
        axes.set_xlim(left=0.6)
    for axes, name in zip(grid[0], ("share", "entropy"), strict=False):
        axes.set_ylim(0, 1)
        # A standard deviation over heads and tokens to either side.
        known = select(first, name).dropna(subset="mean")
        low, high = ((known["mean"] + sign * known["std"]).clip(0, 1) for sign in (-1, 1))
        axes.fill_between(known["layer"], low, high, color=_BAND.get_facecolor(), linewidth=0)
    even = {"color": "0.4", "linewidth": 0.9}
    numbers = wide(first)  # a gap where a layer has none
    grid[0, 0].plot(numbers["layer"], numbers["even_share"], label="spread evenly", **even)
    for axes in grid[0, 2:]:
        if axes.get_yscale() == "linear":
            axes.set_ylim(top=max(1.1, axes.get_ylim()[1]))
        axes.axhline(1.0, zorder=0, **even)
    queries = [curve.name for curve in reversed(declared[0].curves)]
    named = entries(grid)
    order = [name for name in (*queries, "spread evenly") if name in named]
    legend_below(drawing, grid, [*map(named.__getitem__, order), _BAND])
    return drawing


# --- head by head --------------------------------------------------------------------------------

_HEADS_HEIGHT = 3.0  # inches
_NAMED = 9  # layers, at most
_OF_HEADS = (
    ("share", "(a) attention on visual tokens", "viridis", "share"),
    ("entropy", "(b) entropy over them", "viridis", "1: even"),
    ("vertical_center", "(c) vertical center", "PuOr", "0: top, 1: bottom"),
)


def by_head(heads: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Of the first query, layers down, heads across; NaN where there is no number."""
    told = heads[heads["query"] == heads["query"].iloc[0]]
    cells = select(told, quantity).pivot(index="layer", columns="head", values="mean")
    layers, numbers = (sorted(told[name].unique()) for name in ("layer", "head"))
    return cells.reindex(index=layers, columns=numbers)


def draw_heads(title: str, heads: pd.DataFrame, ax: Given = None) -> Figure:
    """A row a layer, a column a head; grey where there is no number."""
    query = drawable(str(heads["query"].iloc[0]))
    heading = f"{title}\nattention of {query}, head by head"
    shape = (1, len(_OF_HEADS))
    drawing, grid = panels(heading, DOUBLE_WIDTH, _HEADS_HEIGHT, shape, ax, sharey=True)
    for axes, (quantity, words, colors, meaning) in zip(grid[0], _OF_HEADS, strict=True):
        cells = by_head(heads, quantity)
        layers = list(cells.index)
        # Of share the colours reach to the largest: few heads look at the image alone.
        most = 1.0 if quantity != "share" else float(np.nanmax([*cells.to_numpy().flat, 1e-9]))
        drawn = axes.pcolormesh(
            np.arange(cells.shape[1] + 1) + 0.5,
            np.append(cells.index.to_numpy() - 0.5, layers[-1] + 0.5),
            np.ma.masked_invalid(cells.to_numpy(float)),
            cmap=colors,
            vmin=0,
            vmax=most,
        )
        axes.set_facecolor("0.8")
        axes.set_title(words, loc="left")
        axes.set_xlabel("head")
        axes.xaxis.get_major_locator().set_params(integer=True)
        bar = drawing.colorbar(drawn, ax=axes, location="bottom", shrink=0.9, aspect=25)
        bar.set_label(meaning)
        axes.set_yticks(layers[:: -(-len(layers) // _NAMED)])
        axes.set_ylim(layers[-1] + 0.5, layers[0] - 0.5)
    grid[0, 0].set_ylabel("decoder layer")
    return drawing


#: Also of compared runs that were asked the same of the same pictures.
HEATMAPS = Drawing("heatmaps", ("heatmaps",), draw_heatmaps, images=True, options=True)
