"""Attention over the image: amounts per area, and their places on the canvas."""

import numpy as np
import pandas as pd
import pytest
from support import made_tables

from normprobe.measurements.attention.figures.heatmaps import attention_map, figure


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
    drawing = figure("model", made_tables.heatmaps(layers=(1, 2, 3, 4, 5)), [image])
    titles = [axes.get_title() for axes in drawing.axes if axes.get_title()]
    shown = [
        f"{query}, layer {layer}" for query in ("all text", "red cup") for layer in range(1, 6)
    ]
    assert titles == shown
