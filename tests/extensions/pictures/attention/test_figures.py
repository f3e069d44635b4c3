"""Attention over the image: amounts per area and their places; heads; compared runs."""

import numpy as np
import pandas as pd
import pytest
from support import made_tables
from support.flat import tidied

from normprobe.extensions.pictures.attention.figures import draw_heads
from normprobe.report.figures.heat_maps import attention_map, draw_heatmaps
from normprobe.report.figures.style import look

IMAGE = np.zeros((40, 60, 3), dtype=np.uint8)
NAN = float("nan")


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        # Even attention is 1 wherever tokens look, and nothing elsewhere.
        ([(0, 0, 0.25, 1, 0.1), (0.25, 0, 0.75, 1, 0.2)], [[1, 1, 1, NAN], [1, 1, 1, NAN]]),
        # A token with twice the attention is twice as bright.
        ([(0, 0, 0.5, 1, 0.2), (0.5, 0, 1, 1, 0.1)], 2 * [[4 / 3, 4 / 3, 2 / 3, 2 / 3]]),
        # A tile adds to the thumbnail.
        ([(0, 0, 1, 1, 0.1), (0, 0, 0.5, 0.5, 0.1)], [[2.5, 2.5, 0.5, 0.5], 4 * [0.5]]),
        # Rows and columns stand where the table says; no attention is not no token.
        ([(0, 0, 1, 0.5, 0.0), (0, 0.5, 0.5, 1, 0.3)], [4 * [0], [3, 3, NAN, NAN]]),
        # Padding has a token but no place.
        ([(0, 0, 1, 1, 0.1), (0.3, 1, 0.6, 1, 0.1)], 2 * [4 * [0.5]]),
    ],
)
def test_attention_per_area(places, expected):
    rows = pd.DataFrame(places, columns=["left", "top", "right", "bottom", "attention"])
    drawn = attention_map(rows, 800, 400)
    assert drawn.shape == (224, 448)
    np.testing.assert_allclose(drawn[56::112, 56::112], expected)


def draw(table, images=(IMAGE,), **options):
    with look():
        drawing = draw_heatmaps("model", table, list(images), options)
        drawing.draw_without_rendering()
    return drawing, [axes for axes in drawing.axes if axes.get_title()]


def legend_of(drawing):
    return {text.get_text() for legend in drawing.legends for text in legend.get_texts()}


@pytest.mark.parametrize(("layers", "columns"), [(1, 2), (2, 2), (3, 3), (4, 4), (5, 3), (6, 3)])
def test_a_panel_a_query_and_layer_and_no_row_is_half_empty(layers, columns):
    numbers = range(1, layers + 1)
    drawing, panels = draw(made_tables.heatmaps(layers=numbers))
    shown = [f"{query}, layer {layer}" for query in ("all text", "red cup") for layer in numbers]
    assert [axes.get_title() for axes in panels] == shown
    assert panels[0].get_subplotspec().get_gridspec().ncols == columns
    assert max(axes.get_tightbbox().x1 for axes in panels) > 0.9 * drawing.bbox.width
    first_of_rows = panels[::columns]
    assert sum(axes.bbox.height for axes in first_of_rows) > 0.4 * drawing.bbox.height


def test_the_target_box_is_drawn_in_every_panel_where_it_is():
    drawing, panels = draw(made_tables.heatmaps(), box=[6.0, 8.0, 30.0, 20.0])
    assert len(panels) == 6
    for axes in panels:
        (box,) = axes.patches
        assert (*box.get_xy(), box.get_width(), box.get_height()) == (6.0, 8.0, 24.0, 12.0)
        assert (axes.get_xlim(), axes.get_ylim()) == ((0, 60), (40, 0))
    assert legend_of(drawing) == {"target box", "no visual token looks there"}
    whole = made_tables.heatmaps().assign(left=0.0, right=1.0)
    assert legend_of(draw(whole, box=None)[0]) == set()


def test_compared_runs_stand_below_each_other_in_the_layers_that_all_have():
    tables = [
        made_tables.heatmaps(layers=layers).assign(run=name)
        for name, layers in (("before", (1, 2)), ("after", (2, 3)))
    ]
    _, panels = draw(pd.concat(tables))
    shown = [axes.get_title().split(",")[0] for axes in panels]
    assert shown == ["before", "after"] * 2
    assert all(axes.get_title().endswith("layer 2") for axes in panels)
    assert len({round(axes.get_position().x0, 3) for axes in panels}) == 1


def test_the_names_of_compared_runs_do_not_run_into_each_other():
    """Runs and queries with long names, over two pictures and as many layers as fit in a row."""
    maps = made_tables.heatmaps(layers=(1, 2, 3, 4), queries=("the cup on the saucer",))
    runs = [maps.assign(run=name, image=n) for name in ("baseline", "norm applied") for n in (1, 2)]
    _, panels = draw(pd.concat(runs, ignore_index=True), [IMAGE] * 2)
    assert panels[0].get_title() == "baseline, the cup on the sauc…\npicture 1, layer 1"
    titles = [axes.title.get_window_extent().extents for axes in panels]
    rows = np.array(titles).reshape(4, 4, 4)
    assert (rows[:, :-1, 2] < rows[:, 1:, 0]).all()
    bottoms = np.array([axes.get_window_extent().y0 for axes in panels]).reshape(4, 4)
    assert (rows[1:, :, 3] < bottoms[:-1]).all()


def test_cells_of_heads_are_the_numbers_of_the_first_query():
    heads = made_tables.heads()
    panels = draw_heads("made", tidied("heads", heads)).axes[:3]
    first = heads[heads["query"] == "all text"]
    for axes, column in zip(panels, ("share_mean", "entropy_mean", "vertical_center"), strict=True):
        (mesh,) = axes.collections
        grid = first.pivot(index="layer", columns="head", values=column).to_numpy()
        np.testing.assert_allclose(mesh.get_array().filled(np.nan), grid)
        assert mesh.get_clim() == (0, np.nanmax(grid) if column == "share_mean" else 1)
    assert panels[0].yaxis_inverted()
