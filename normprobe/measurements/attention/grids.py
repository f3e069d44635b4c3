"""Attention laid over its pictures, and head by head, for the page."""

from typing import Any

import numpy as np
import pandas as pd

from normprobe.measurements.attention.figures.heatmaps import attention_map
from normprobe.report.figures.norm_map import canvas_shape, on_canvas
from normprobe.report.page.blocks import Grid, grid_of, named, over_picture
from normprobe.report.page.markup import photograph_url
from normprobe.runs.run_folder import RunStore, image_name
from normprobe.schema import IMAGE

_MOST = 99.0  # percentile at which the colours end: sinks draw a hundred times the even share
#: Column of ``heads.csv``, its words, the number without colour and that of full colour.
_HEADS = (
    ("share_mean", "share on visual tokens", 0.0, 1.0),
    ("entropy_mean", "entropy over them (1: even)", 0.0, 1.0),
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
        over_picture(grid_of(label, values, middle=1, end=end, log=True), picture, *edges)
        for label, values, picture, edges in drawn
    ]
    return {"unit": "x even attention", "pictures": pictures, "maps": maps}


def head_grids(heads: pd.DataFrame) -> dict[str, Any]:
    """Layers down, heads across; of the first query."""
    told = heads[heads["query"] == heads["query"].iloc[0]]
    maps: list[Grid] = []
    for column, label, middle, end in _HEADS:
        table = told.pivot(index="layer", columns="head", values=column)
        grid = grid_of(label, table.to_numpy(float), middle=middle, end=end)
        maps.append(named(grid, ("layer", "head"), list(table.index), list(table.columns)))
    return {"maps": maps}
