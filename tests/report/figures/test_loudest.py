"""The gallery: which tokens, in which order, and what each crop shows."""

import numpy as np
import pytest
from support import made_tables

from normprobe.report.figures.norm_map import draw_loudest

PICTURES = [np.zeros((40, 60, 3), dtype=np.uint8)] * 2


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


def test_a_token_of_padding_has_no_crop():
    axes = draw_loudest("model", made_tables.norm_map(), PICTURES).axes[0]
    assert axes.get_title().startswith("90.00")
    assert not axes.images
    assert [text.get_text() for text in axes.texts] == ["padding"]


def test_fewer_tokens_than_places():
    table = made_tables.norm_map(pictures=1, rows=1, columns=5)
    drawing = draw_loudest("model", table, PICTURES)
    assert [bool(axes.get_title()) for axes in drawing.axes] == [True] * 5
