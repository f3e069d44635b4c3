"""Attention over the image: amounts per area, and their places on the canvas."""

import numpy as np
import pandas as pd
import pytest
from support import made_tables

from normprobe.measurements.attention.figures import attention_map, draw_heads, draw_heatmaps
from normprobe.report.figures.style import look


def places(*rows):
    return pd.DataFrame(rows, columns=["left", "top", "right", "bottom", "attention"])


def test_even_attention_is_one_wherever_tokens_look():
    drawn = attention_map(places((0, 0, 0.25, 1, 0.1), (0.25, 0, 0.75, 1, 0.2)), 800, 400)
    assert drawn.shape == (224, 448)
    assert np.isnan(drawn[:, 336:]).all()
    np.testing.assert_allclose(drawn[:, :336], 1)


def test_a_token_with_twice_the_attention_is_twice_as_bright():
    drawn = attention_map(places((0, 0, 0.5, 1, 0.2), (0.5, 0, 1, 1, 0.1)), 100, 50)
    np.testing.assert_allclose(drawn[:, :224], 4 / 3)
    np.testing.assert_allclose(drawn[:, 224:], 2 / 3)


def test_a_tile_adds_to_the_thumbnail():
    drawn = attention_map(places((0, 0, 1, 1, 0.1), (0, 0, 0.5, 0.5, 0.1)), 64, 64)
    assert drawn[0, 0] == pytest.approx(0.5 + 0.5 * 4)
    assert drawn[-1, -1] == pytest.approx(0.5)


def test_rows_and_columns_stand_where_the_table_says():
    drawn = attention_map(places((0, 0, 1, 0.5, 0.0), (0, 0.5, 0.5, 1, 0.3)), 64, 64)
    assert drawn[400, 100] > 0
    assert drawn[100, 100] == drawn[100, 400] == 0
    assert np.isnan(drawn[400, 400])


def test_padding_has_a_token_but_no_place():
    drawn = attention_map(places((0, 0, 1, 1, 0.1), (0.3, 1, 0.6, 1, 0.1)), 64, 64)
    np.testing.assert_allclose(drawn, 0.5)


def test_a_panel_a_query_and_layer():
    image = np.zeros((40, 60, 3), dtype=np.uint8)
    drawing = draw_heatmaps("model", made_tables.heatmaps(layers=(1, 2, 3, 4, 5)), [image], {})
    titles = [axes.get_title() for axes in drawing.axes if axes.get_title()]
    shown = [
        f"{query}, layer {layer}" for query in ("all text", "red cup") for layer in range(1, 6)
    ]
    assert titles == shown


def legend_of(drawing):
    return {text.get_text() for legend in drawing.legends for text in legend.get_texts()}


def test_the_target_box_is_drawn_in_every_panel_where_it_is():
    image = np.zeros((40, 60, 3), dtype=np.uint8)
    drawing = draw_heatmaps(
        "model", made_tables.heatmaps(), [image], {"box": [6.0, 8.0, 30.0, 20.0]}
    )
    maps = [axes for axes in drawing.axes if axes.get_title()]
    assert len(maps) == 6
    for axes in maps:
        (box,) = axes.patches
        assert (*box.get_xy(), box.get_width(), box.get_height()) == (6.0, 8.0, 24.0, 12.0)
        assert axes.get_xlim() == (0, 60)
        assert axes.get_ylim() == (40, 0)
    assert legend_of(drawing) == {"target box", "no visual token looks there"}


def test_a_legend_names_only_what_is_there():
    whole = made_tables.heatmaps().assign(left=0.0, right=1.0)
    drawing = draw_heatmaps("model", whole, [np.zeros((40, 60, 3), dtype=np.uint8)], {"box": None})
    assert legend_of(drawing) == set()


@pytest.mark.parametrize(("layers", "columns"), [(1, 2), (2, 2), (3, 3), (4, 4), (5, 3), (6, 3)])
def test_no_row_of_panels_is_half_empty(layers, columns):
    image = np.zeros((40, 60, 3), dtype=np.uint8)
    drawing = draw_heatmaps("m", made_tables.heatmaps(layers=range(1, layers + 1)), [image], {})
    drawing.draw_without_rendering()
    panels = [axes for axes in drawing.axes if axes.get_title()]
    assert panels[0].get_subplotspec().get_gridspec().ncols == columns
    right = max(axes.get_tightbbox().x1 for axes in panels)
    assert right > 0.9 * drawing.bbox.width


def test_of_several_runs_the_layers_that_all_have_are_shown():
    tables = [
        made_tables.heatmaps(layers=layers).assign(run=f"{layers}") for layers in ((1, 2), (2, 3))
    ]
    drawing = draw_heatmaps("m", pd.concat(tables), [np.zeros((40, 60, 3), dtype=np.uint8)], {})
    titles = [axes.get_title() for axes in drawing.axes if axes.get_title()]
    assert len(titles) == 4
    assert all(title.endswith("layer 2") for title in titles)


def test_the_names_of_compared_runs_do_not_run_into_each_other():
    """Runs and queries with long names, over two pictures and as many layers as fit in a row."""
    maps = made_tables.heatmaps(layers=(1, 2, 3, 4), queries=("the cup on the saucer",))
    runs = [maps.assign(run=name, image=n) for name in ("baseline", "norm applied") for n in (1, 2)]
    images = [np.zeros((40, 60, 3), dtype=np.uint8)] * 2
    with look():
        drawing = draw_heatmaps("model", pd.concat(runs, ignore_index=True), images, {})
        drawing.draw_without_rendering()
    titles = [axes.title for axes in drawing.axes if axes.get_title()]
    assert titles[0].get_text() == "baseline, the cup on the sauc…\npicture 1, layer 1"
    rows = np.array([title.get_window_extent().extents for title in titles]).reshape(4, 4, 4)
    assert (rows[:, :-1, 2] < rows[:, 1:, 0]).all()
    panels = [axes.get_window_extent().y0 for axes in drawing.axes if axes.get_title()]
    bottoms = np.array(panels).reshape(4, 4)
    assert (rows[1:, :, 3] < bottoms[:-1]).all()


def test_compared_runs_stand_below_each_other():
    tables = [made_tables.heatmaps(layers=(3,)).assign(run=name) for name in ("before", "after")]
    drawing = draw_heatmaps("m", pd.concat(tables), [np.zeros((40, 60, 3), dtype=np.uint8)], {})
    drawing.draw_without_rendering()
    shown = [axes for axes in drawing.axes if axes.get_title()]
    assert [axes.get_title().split(",")[0] for axes in shown] == ["before", "after"] * 2
    assert len({round(axes.get_position().x0, 3) for axes in shown}) == 1


def test_cells_are_the_numbers_of_the_first_query() -> None:
    heads = made_tables.heads()
    panels = draw_heads("made", heads).axes[:3]
    first = heads[heads["query"] == "all text"]
    for axes, column in zip(panels, ("share_mean", "entropy_mean", "vertical_center"), strict=True):
        (mesh,) = axes.collections
        grid = first.pivot(index="layer", columns="head", values=column).to_numpy()
        np.testing.assert_allclose(mesh.get_array().filled(np.nan), grid)
    assert panels[0].yaxis_inverted()
