"""Maps of the interface against float64 NumPy, and the places of each stage by changing pixels."""

import copy

import numpy as np
import pytest
import torch
from support.mapped import (
    TYPES,
    assert_looks_at,
    captured,
    flat,
    moved_most,
    photograph,
    picture_of,
    prompt,
    tiny,
    with_square,
)
from support.reference import norm
from support.several_images import SAMPLES, rows_of_image

from normprobe import find_parts
from normprobe.measurements.interface.norm_map import norm_map
from normprobe.model.measured_model import MeasuredModel
from normprobe.schema import (
    DECODER_INPUT,
    MERGED_INPUT,
    PROJECTOR_INPUT,
    PROJECTOR_OUTPUT,
    VISION_ENCODER,
)

MARKED = SAMPLES[0]
PLACE = ["left", "top", "right", "bottom"]
#: What has no map, of the types that lack one.
LEFT_OUT = {"hunyuan_vl": {PROJECTOR_OUTPUT}}  # newlines between its rows


def stage_rows(states, own, class_rows):
    """The rows of each stage, ``[rows, width]``."""
    entered = states.projector_input
    if len(entered[0].reshape(-1, entered[0].shape[-1])) % (1 + class_rows):
        entered = [call[..., class_rows:, :] for call in entered]
    return {
        VISION_ENCODER: flat(states.vision_encoder, class_rows),
        PROJECTOR_INPUT: flat(entered),
        PROJECTOR_OUTPUT: flat(states.projector_output),
        DECODER_INPUT: states.layers[0].entered[0, own],
    }


@pytest.mark.parametrize("model_type", TYPES)
def test_each_place_holds_the_norm_of_the_row_that_its_pixels_move(model_type, tmp_path_factory):
    model, builder = tiny(model_type, tmp_path_factory.getbasetemp())
    sample = prompt(photograph())
    own = rows_of_image(model, builder, sample, 1)
    found = norm_map(model, picture_of(builder, sample))
    maps = dict(iter(found.rows.groupby("stage", sort=False)))
    assert set(found.unknown) == LEFT_OUT.get(model_type, set())
    assert {*maps, *found.unknown} - {MERGED_INPUT} == {
        VISION_ENCODER,
        PROJECTOR_INPUT,
        PROJECTOR_OUTPUT,
        DECODER_INPUT,
    }

    def rows_of(image):
        states = captured(model, builder, prompt(image))
        return stage_rows(states, own, model.parts.class_rows)

    rows, grey = rows_of(photograph()), rows_of(with_square(0.5, 0.5, side=0))
    boxes = maps[DECODER_INPUT][PLACE].to_numpy()
    shown = boxes[boxes[:, 3] - boxes[:, 1] > 0.1]  # not padding
    middles = [((b[0] + b[2]) / 2, (b[1] + b[3]) / 2) for b in shown[:: max(1, len(shown) // 3)]]
    changed = [(x, y, rows_of(with_square(x, y))) for x, y in middles]
    for stage in maps.keys() - {MERGED_INPUT}:
        np.testing.assert_allclose(maps[stage]["norm"], norm(rows[stage]), rtol=1e-4)
        places = maps[stage][PLACE].to_numpy()
        for x, y, after in changed:
            assert_looks_at(places[moved_most(grey[stage], after[stage])], x, y)


def test_stages_stand_in_the_order_of_the_way(tmp_path_factory):
    """The projector of this type runs inside its vision encoder, and is through before it."""
    model, builder = tiny("idefics3", tmp_path_factory.getbasetemp())
    stages = norm_map(model, picture_of(builder, prompt(photograph()))).rows["stage"].unique()
    way = [VISION_ENCODER, PROJECTOR_INPUT, MERGED_INPUT, PROJECTOR_OUTPUT, DECODER_INPUT]
    assert list(stages) == [stage for stage in way if stage in stages]


@pytest.mark.parametrize("number", [1, 2])
def test_one_of_several_images(number, tmp_path_factory):
    model, builder = tiny("llava", tmp_path_factory.getbasetemp())
    found = norm_map(model, picture_of(builder, MARKED, number))
    assert found.unknown == {}
    states = captured(model, builder, MARKED)
    rows = dict(iter(found.rows.groupby("stage")))
    encoded = states.vision_encoder[0][number - 1, model.parts.class_rows :]
    np.testing.assert_allclose(rows[VISION_ENCODER]["norm"], norm(encoded), rtol=1e-4)
    own = rows_of_image(model, builder, MARKED, number)
    entered = states.layers[0].entered[0, own]
    np.testing.assert_allclose(rows[DECODER_INPUT]["norm"], norm(entered), rtol=1e-4)


def test_queries_have_no_place_and_patches_have(tmp_path_factory):
    model, builder = tiny("blip-2", tmp_path_factory.getbasetemp())
    found = norm_map(model, picture_of(builder, prompt(photograph())))
    assert found.rows["stage"].unique().tolist() == [VISION_ENCODER]
    assert "do not react to the places" in found.unknown[DECODER_INPUT]


def test_attended_states_have_places_where_the_sequence_has_none(tmp_path_factory):
    model, builder = tiny("mllama", tmp_path_factory.getbasetemp())
    found = norm_map(model, picture_of(builder, prompt(photograph())))
    assert PROJECTOR_OUTPUT in set(found.rows["stage"])
    assert "no rows of its sequence" in found.unknown[DECODER_INPUT]


def test_a_stage_in_another_order_is_left_out_alone(tmp_path_factory):
    """The map is not believed, it is tested: here the projector hands its rows on in disorder."""
    whole, builder = tiny("llava", tmp_path_factory.getbasetemp())
    disordered = copy.deepcopy(whole.model)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    projector = disordered.model.multi_modal_projector
    forward = projector.forward
    projector.forward = lambda features: forward(features)[:, order]
    model = MeasuredModel(disordered, find_parts(disordered), whole.special_token_ids)
    found = norm_map(model, picture_of(builder, prompt(photograph())))
    assert set(found.rows["stage"]) == {VISION_ENCODER, PROJECTOR_INPUT}
    assert set(found.unknown) == {PROJECTOR_OUTPUT, DECODER_INPUT}
