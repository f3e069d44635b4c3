"""How a run of ``attention`` is shown: on a terminal, and on the page."""

from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from rich.console import Console

from normprobe.extensions.pictures.attention.figures import by_head, layer_panels
from normprobe.report.charts import charts
from normprobe.report.figures.heat_maps import attention_map
from normprobe.report.figures.norm_map import canvas_shape, on_canvas
from normprobe.report.page.blocks import (
    Grid,
    asked,
    curves,
    grid,
    grid_of,
    grid_over_picture,
    heading,
    named,
    note,
    photograph_url,
)
from normprobe.report.page.blocks import shown_table as shown
from normprobe.report.terminal import NumberColumn, print_by_layer
from normprobe.runs.run_folder import RunStore, image_name
from normprobe.schema import IMAGE
from normprobe.tidy import QUANTITY, select

_COLUMNS = [
    NumberColumn(("share",), "share"),
    NumberColumn(("std",), "share", estimate="std"),
    NumberColumn(("even",), "even_share"),
    NumberColumn(("entropy",), "entropy"),
    NumberColumn(("signal/noise",), "signal_to_noise"),
    NumberColumn(("score gap",), "score_gap"),
]


def show(run: RunStore, console: Console) -> None:
    """Print the attention to the image layer by layer."""
    attention = run.table("attention")
    print_attention(attention, console)
    if run.has_table("images"):
        print_images(run.table("images"), console)


def print_attention(attention: pd.DataFrame, console: Console) -> None:
    """Print ``attention.csv``: how much, how widely and how well text attends to the image."""
    notes = [
        "share: of a token's attention, what falls on visual tokens; mean and std over",
        "heads and tokens. even: the share if spread evenly over all visible tokens.",
        "entropy: over the visual tokens, 1: even, 0: on one token.",
    ]
    if select(attention, "signal_to_noise")["mean"].notna().any():
        notes.append("signal/noise: attention to a visual token inside the box / outside.")
        notes.append("score gap: its score before the softmax, inside - outside (Eq. 21).")
    if not select(attention, "heads")["mean"].gt(0).all():
        notes.append("- a layer without softmax attention to them.")
    last = attention["query"].iloc[-1]
    for query, rows in attention.groupby("query", sort=False):
        title = f"Attention to the image from {query} ({int(rows['tokens'].iloc[0])} tokens)"
        below = notes if query == last else ()
        print_by_layer(title, rows, _COLUMNS, console, below, "attention.csv")


def print_images(images: pd.DataFrame, console: Console) -> None:
    """Print which part of the attention of all text each image draws."""
    rows = images[images["query"] == images["query"].iloc[0]]
    columns = [
        NumberColumn((f"image {number}",), "share", {IMAGE: number})
        for number in sorted(rows[IMAGE].unique())
    ]
    print_by_layer("Share of each image", rows, columns, console, (), "images.csv")


# --- on the page ---------------------------------------------------------------------------------

_MAPS = (
    "Attention per area of the picture. Orange: more than attention spread evenly over it would "
    "give, blue: less."
)
_CELLS = "Of all text, or the first word that was followed. Each cell is a head in a layer."


def section(run: RunStore) -> list[Markup]:
    """How much and how widely text attends to the image."""
    attention, images = run.table("attention"), run.rows_of("images")
    blocks = [*_asked(run), *_maps(run)]
    blocks += [
        heading("Attention to the image, layer by layer"),
        curves(charts(layer_panels(attention), attention)),
        shown(attention[attention.groupby(QUANTITY)["mean"].transform("count") > 0]),
    ]
    heads = run.rows_of("heads")
    if heads is not None:
        blocks += [heading("Head by head"), grid(head_grids(heads)), note(_CELLS)]
    if images is not None:
        blocks += [heading("Image by image"), shown(images)]
    return blocks


def _asked(run: RunStore) -> list[Markup]:
    """The question and its pictures, where the run says them."""
    options = run.record.get("options") or {}
    pictures = [photograph_url(np.asarray(image.convert("RGB"))) for _, image in run.images()]
    question = str(options.get("prompt") or "")
    return [asked(question, pictures)] if question or pictures else []


def _maps(run: RunStore) -> list[Markup]:
    """Heat maps over their pictures; nothing where the run has none."""
    grids = picture_grids(run)
    return [] if grids is None else [grid(grids), note(_MAPS)]


_MOST = 99.0  # percentile at which the colours end: sinks draw a hundred times the even share
#: Quantity of ``heads.csv``, its words, the number without colour and that of full colour.
_HEADS = (
    ("share", "share on visual tokens", 0.0, 1.0),
    ("entropy", "entropy over them (1: even)", 0.0, 1.0),
    ("vertical_center", "vertical center (0: top, 1: bottom)", 0.5, 1.0),
)


def picture_grids(run: RunStore) -> dict[str, Any] | None:
    """The heat maps over their pictures; None where the run has none.

    Each is divided where the places of visual tokens begin or end. A cell's number is the
    attention per area, 1 where it is what even attention to the picture would give.
    """
    heatmaps = run.rows_of("heatmaps")
    if heatmaps is None:
        return None
    if IMAGE not in heatmaps:
        heatmaps = heatmaps.assign(**{IMAGE: 1})
    numbers = sorted(int(number) for number in heatmaps[IMAGE].unique())
    images = {number: run.image(image_name(number)) for number in numbers}
    pictures = [
        {"url": photograph_url(image, grey=True), "ratio": image.shape[0] / image.shape[1]}
        for image in images.values()
    ]
    drawn, several = [], heatmaps["query"].nunique() > 1
    for names, rows in heatmaps.groupby(["query", IMAGE, "layer"], sort=False):
        query, number, layer = names[0], int(str(names[1])), names[2]
        image = f"image {number}" if len(numbers) > 1 else ""
        label = [str(query) if several else "", image, f"layer {layer}"]
        height, width = images[number].shape[:2]
        canvas = attention_map(rows, width, height)
        places = on_canvas(rows, canvas_shape(width, height))
        x, y = np.unique(places[:, [0, 2]]), np.unique(places[:, [1, 3]])
        values = canvas[np.ix_((y[:-1] + y[1:]) // 2, (x[:-1] + x[1:]) // 2)]
        edges = x / canvas.shape[1], y / canvas.shape[0]
        drawn.append((", ".join(filter(None, label)), values, numbers.index(number), edges))
    cells = np.concatenate([values.ravel() for _, values, *_ in drawn])
    end = max(2.0, float(np.nanpercentile(cells, _MOST)))
    maps = [
        grid_over_picture(grid_of(label, values, middle=1, end=end, log=True), picture, *edges)
        for label, values, picture, edges in drawn
    ]
    return {"unit": "x even attention", "pictures": pictures, "maps": maps}


def head_grids(heads: pd.DataFrame) -> dict[str, Any]:
    """Layers down, heads across; of the first query."""
    maps: list[Grid] = []
    for quantity, label, middle, end in _HEADS:
        table = by_head(heads, quantity)
        grid = grid_of(label, table.to_numpy(float), middle=middle, end=end)
        maps.append(named(grid, ("layer", "head"), list(table.index), list(table.columns)))
    return {"maps": maps}
