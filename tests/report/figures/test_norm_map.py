"""Norms over a picture, one scale for all panels; and the loudest tokens, each in its crop."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import LogNorm
from support import made_tables

from normprobe.report.figures.norm_map import draw_loudest, draw_maps, token_map

PICTURES = [np.zeros((40, 60, 3), dtype=np.uint8)] * 2


def places(*rows):
    return pd.DataFrame(rows, columns=["left", "top", "right", "bottom", "norm"])


def test_each_pixel_has_the_number_of_its_token():
    drawn = token_map(places((0, 0, 0.25, 1, 3.0), (0.25, 0, 0.75, 1, 7.0)), "norm", 800, 400)
    assert drawn.shape == (224, 448)
    assert (drawn[:, :112] == 3).all()
    assert (drawn[:, 112:336] == 7).all()
    assert np.isnan(drawn[:, 336:]).all()


@pytest.mark.parametrize("order", [1, -1])
def test_a_tile_lies_over_the_thumbnail(order):
    rows = [(0, 0, 1, 1, 3.0), (0, 0, 0.5, 0.5, 7.0)][::order]
    drawn = token_map(places(*rows), "norm", 64, 64)
    assert drawn[0, 0] == 7
    assert drawn[-1, -1] == drawn[0, -1] == drawn[-1, 0] == 3


def panels_of(drawing):
    """The titles of the maps; those of the pictures are their numbers."""
    titles = [axes.get_title() for axes in drawing.axes]
    return [title for title in titles if title and not title.startswith("picture")]


def test_a_panel_a_layer_and_a_line_a_picture():
    drawing = draw_maps("model", made_tables.norm_map(), PICTURES)
    # The angle of layer 0 is that of no layer.
    assert panels_of(drawing) == ["layer 0", "layer 4", "layer 8", "layer 4", "layer 8"]
    drawn = [axes for axes in drawing.axes if axes.images]
    assert len(drawn) == 2 * (1 + 3) + 2 * (1 + 2)
    bars = [axes.get_ylabel() for axes in drawing.axes if axes.get_ylabel()]
    assert bars[-2:] == ["L2 norm", "angle (rad)"]


def test_stages_have_norms_alone():
    stages = ("vision_encoder", "decoder_input")
    drawing = draw_maps("model", made_tables.norm_map("stage", stages), PICTURES)
    assert panels_of(drawing) == ["vision encoder", "decoder input"]


@pytest.mark.parametrize(("loudest", "is_log"), [(90.0, True), (40.0, False)])
def test_all_panels_share_a_scale_from_the_quietest_to_the_loudest(loudest, is_log):
    table = made_tables.norm_map("stage", ("vision_encoder", "decoder_input"))
    table["norm"] = np.linspace(5.0, loudest, len(table))
    drawing = draw_maps("model", table, PICTURES)
    (bar,) = [axes for axes in drawing.axes if axes.get_ylabel() == "L2 norm"]
    assert bar.get_ylim() == pytest.approx((5.0, loudest))
    assert (bar.get_yscale() == "log") == is_log


def test_the_same_number_has_the_same_colour_in_every_panel():
    rows = places((0, 0, 1, 1, 5.0), (0, 0, 0, 0, 9.0))
    tables = [rows.assign(stage=stage) for stage in ("vision_encoder", "decoder_input")]
    tables[1].loc[0, "norm"] = 7.0
    table = pd.concat([*tables, tables[0].assign(stage="projector_output")])
    table = table.assign(sample_id="a", image=1, visual_token=1)
    panels = [axes.images[0].get_array() for axes in draw_maps("m", table, PICTURES).axes[1:4]]
    assert (panels[0] == panels[2]).all()
    assert (panels[0] != panels[1]).any()


def test_numbers_that_are_none_are_grey():
    table = made_tables.norm_map()
    table.loc[table["layer"] == 4, "norm"] = np.inf
    drawing = draw_maps("model", table, PICTURES)
    panel = drawing.axes[2].images[0].get_array()
    assert np.ptp(panel[20, 20:25]) == 0
    assert not isinstance(drawing.axes[2].images[0].norm, LogNorm)


def test_a_stage_that_the_first_picture_lacks_has_its_title():
    table = made_tables.norm_map("stage", ("vision_encoder", "decoder_input"))
    lacks = (table["image"] == 1) & (table["stage"] == "decoder_input")
    drawing = draw_maps("model", table[~lacks], PICTURES)
    assert panels_of(drawing) == ["vision encoder", "decoder input"]


def test_of_many_pictures_the_first_are_drawn():
    table = made_tables.norm_map("stage", ("vision_encoder",), pictures=40, rows=1)
    drawing = draw_maps("model", table, PICTURES * 20)
    assert sum(bool(axes.images) for axes in drawing.axes) == 8 * 2


# --- the loudest tokens -------------------------------------------------------------------------


def test_the_loudest_tokens_of_the_first_stage_come_first():
    table = made_tables.norm_map("stage", ("vision_encoder", "decoder_input"))
    table["norm"] = np.arange(len(table)) + 1.0
    drawing = draw_loudest("model", table, PICTURES)
    norms = [float(axes.get_title().split(",")[0]) for axes in drawing.axes]
    first = table[table["stage"] == "vision_encoder"]["norm"]
    assert norms == sorted(first, reverse=True)[:12]
    assert "vision encoder" in drawing.get_suptitle()
    times = float(drawing.axes[0].get_title().split(", ")[1].split(" x")[0])
    assert times == pytest.approx(norms[0] / first.median(), rel=0.05)


def test_a_frame_stands_around_the_place_in_its_own_picture():
    table = made_tables.norm_map("stage", ("vision_encoder",))
    table["norm"] = 1.0
    table.loc[(table["image"] == 2) & (table["visual_token"] == 8), "norm"] = 5.0
    black, white = PICTURES[0], PICTURES[0] + np.uint8(255)
    axes = draw_loudest("model", table, [black, white]).axes[0]
    assert axes.images[0].get_array().min() == 255
    (frame,) = axes.patches
    place = table.loc[table["visual_token"] == 8].iloc[0]
    assert frame.get_xy() == pytest.approx((place["left"] * 60, place["top"] * 40), abs=1)
    assert frame.get_width() == pytest.approx((place["right"] - place["left"]) * 60, abs=1)
    middle = frame.get_x() + frame.get_width() / 2
    assert sum(axes.get_xlim()) / 2 == pytest.approx(middle)
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    down = place["bottom"] - place["top"]
    assert (right - left) / frame.get_width() == pytest.approx(
        (bottom - top) / (down * 40), rel=0.1
    )
    assert top < frame.get_y() < bottom


def test_a_token_of_padding_has_no_crop():
    axes = draw_loudest("model", made_tables.norm_map(), PICTURES).axes[0]
    assert axes.get_title().startswith("90.00")
    assert not axes.images
    assert [text.get_text() for text in axes.texts] == ["padding"]


def test_fewer_tokens_than_places():
    table = made_tables.norm_map(pictures=1, rows=1, columns=5)
    drawing = draw_loudest("model", table, PICTURES)
    assert [bool(axes.get_title()) for axes in drawing.axes] == [True] * 5
