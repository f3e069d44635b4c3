"""Maps of decoder layers against float64 NumPy, and their places by changing pixels."""

import numpy as np
import pytest
from support.mapped import (
    TYPES,
    assert_looks_at,
    captured,
    moved_most,
    photograph,
    picture_of,
    prompt,
    tiny,
    with_square,
)
from support.reference import norm, token_metrics
from support.several_images import SAMPLES, rows_of_image

from normprobe.measurements.layers.norm_map import norm_map

MARKED = SAMPLES[0]


def assert_is_map_of(found, states, own):
    """Norms and angles of these rows, in their order, in each layer that is there."""
    layers = dict(iter(found.groupby("layer")))
    assert min(layers) == 0 and max(layers) == len(states.layers)
    for number, rows in layers.items():
        assert rows["visual_token"].tolist() == list(range(1, own.sum() + 1))
        if number == 0:
            expected = norm(states.layers[0].entered[0, own])
            assert rows["angle"].isna().all()
        else:
            metrics = token_metrics(states.layers[number - 1])
            expected = metrics["norm"][0, own]
            np.testing.assert_allclose(rows["angle"], metrics["angle"][0, own], atol=1e-4)
        np.testing.assert_allclose(rows["norm"], expected, rtol=1e-4)


@pytest.mark.parametrize("model_type", TYPES)
def test_each_place_holds_the_numbers_of_the_token_that_its_pixels_move(
    model_type, tmp_path_factory
):
    model, builder = tiny(model_type, tmp_path_factory.getbasetemp())
    sample = prompt(photograph())
    found = norm_map(model, picture_of(builder, sample))
    assert found.unknown == {}
    own = rows_of_image(model, builder, sample, 1)
    assert_is_map_of(found.rows, captured(model, builder, sample), own)

    def first_layer(image):
        return captured(model, builder, prompt(image)).layers[0].entered[0, own]

    places = found.rows.loc[found.rows["layer"] == 0, ["left", "top", "right", "bottom"]].to_numpy()
    shown = [place for place in places if place[3] - place[1] > 0.1]  # not padding
    grey = first_layer(with_square(0.5, 0.5, side=0))
    for left, top, right, bottom in shown[:: max(1, len(shown) // 3)]:
        x, y = (left + right) / 2, (top + bottom) / 2
        assert_looks_at(places[moved_most(grey, first_layer(with_square(x, y)))], x, y)


@pytest.mark.parametrize("model_type", ["llava", "aya_vision"])
@pytest.mark.parametrize("number", [1, 2])
def test_one_of_several_images(model_type, number, tmp_path_factory):
    model, builder = tiny(model_type, tmp_path_factory.getbasetemp())
    found = norm_map(model, picture_of(builder, MARKED, number))
    own = rows_of_image(model, builder, MARKED, number)
    assert_is_map_of(found.rows, captured(model, builder, MARKED), own)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [("blip-2", "do not react to the places"), ("mllama", "no rows of its sequence")],
)
def test_where_places_are_unknown_there_is_a_reason_and_no_map(
    model_type, reason, tmp_path_factory
):
    model, builder = tiny(model_type, tmp_path_factory.getbasetemp())
    found = norm_map(model, picture_of(builder, prompt(photograph())))
    assert found.rows.empty
    assert reason in found.unknown["visual tokens"]
