"""A cell a layer and head."""

import numpy as np
from normprobe.measurements.attention.figures.heads import figure
from support import made_tables


def test_cells_are_the_numbers_of_the_first_query() -> None:
    heads = made_tables.heads()
    panels = figure("made", heads).axes[:3]
    first = heads[heads["query"] == "all text"]
    for axes, column in zip(panels, ("share_mean", "entropy_mean", "vertical_center"), strict=True):
        (mesh,) = axes.collections
        grid = first.pivot(index="layer", columns="head", values=column).to_numpy()
        np.testing.assert_allclose(mesh.get_array().filled(np.nan), grid)
    assert panels[0].yaxis_inverted()
