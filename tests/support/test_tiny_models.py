"""The tiny models and the reference are worth testing against."""

import numpy as np
import pytest
import torch

from normprobe import schema
from support.agreement import assert_agrees
from support.cases import case_of, make_case, model_of
from support.expected_parts import PARTS
from support.reference import (
    angle,
    cross_modal_cosine,
    layers_table,
    members,
    merged,
    observe_pairs,
    token_groups,
    unit,
)
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs, tiny_samples
from support.tiny_models import INDICATORS, VISION_ENCODERS, VLM_TYPES

pytestmark = pytest.mark.slow  # no behaviour of the package


@pytest.mark.parametrize("model_type", VISION_ENCODERS)
def test_bare_encoders_run(model_type):
    model, inputs = model_of(model_type), tiny_inputs(model_of(model_type), batch_size=2)
    states = getattr(model, "vision_model", model)(**inputs).last_hidden_state
    assert torch.isfinite(states).all()


def test_lengths_and_sizes_differ():
    batch = tiny_inputs(model_of("qwen2_vl"), batch_size=4)
    assert len(set(batch["attention_mask"].sum(1).tolist())) > 1
    assert len(batch["image_grid_thw"].unique(dim=0)) > 1


def test_left_padding_is_on_the_left():
    mask = tiny_inputs(model_of("llava"), batch_size=4, padding="left")["attention_mask"]
    assert mask[:, -1].all() and not mask[:, 0].all()


def test_inner_layers_are_the_hidden_states_of_the_model():
    case = case_of("llava")
    with torch.no_grad():
        hidden_states = case.model(**case.inputs, output_hidden_states=True).hidden_states
    for layer, state in zip(case.states.layers, hidden_states, strict=False):
        np.testing.assert_array_equal(layer.entered, state.numpy())
    # The last one has gone through the final norm, which is no layer.
    assert not np.allclose(case.states.layers[-1].left, hidden_states[-1].numpy())


def test_deepstack_adds_between_layers():
    case = case_of("qwen3_vl")
    first, second = case.states.layers[:2]
    added = (first.left != second.entered).any(axis=-1)
    np.testing.assert_array_equal(added, case.groups == schema.VISUAL)


@pytest.mark.parametrize("model_type", VLM_TYPES)
def test_structural_rows(model_type):
    case = case_of(model_type)
    found = [(groups == schema.STRUCTURAL).sum() for groups in case.groups]
    if model_type.startswith(("llava_next", "llava_onevision")):
        # A newline after each row of the tiles, cropped to the image: 24 x 40 leaves four rows.
        assert found == [4, 4, 4, 8]
    else:
        assert found == ([2] * 4 if model_type == "ovis2" else [0] * 4)


def test_visual_indicators_are_not_text():
    case = case_of("ovis2")
    indicators = np.isin(case.inputs["input_ids"].numpy(), INDICATORS)
    assert (case.groups[indicators] == schema.STRUCTURAL).all()


def test_special_image_tokens_stay_visual():
    case = case_of("llava")
    without = token_groups(case.model, case.inputs, case.parts)
    assert ((without == schema.VISUAL) == (case.groups == schema.VISUAL)).all()
    assert set(members(without)) == {schema.VISUAL, schema.TEXT, schema.NON_VISUAL}


@pytest.mark.parametrize("model_type", ["llava_next", "qwen3_vl"])
def test_merged_batches_are_one_batch(model_type):
    model, parts = model_of(model_type), PARTS[model_type]
    alone = [make_case(model, sample, parts, SPECIAL_IDS) for sample in tiny_samples(model, 4)]
    expected = layers_table(case_of(model_type).observations)
    for key, row in layers_table(merged(case.observations for case in alone)).items():
        assert_agrees(row, expected[key], where=key)


def test_angle_of_the_reference():
    turns = np.array([0.0, 1e-9, 1e-3, 1.0, np.pi / 2, 3.0, np.pi])
    ends = np.stack([2.0 * np.cos(turns), 2.0 * np.sin(turns)], axis=-1)
    np.testing.assert_allclose(angle(np.array([[3.0, 0.0]]), ends), turns, atol=1e-15)


def test_mean_over_pairs_is_the_product_of_mean_unit_vectors():
    case = case_of("gemma3")
    state, groups = case.states.layers[1].left[2], case.groups[2]
    visual, text = state[groups == schema.VISUAL], state[groups == schema.TEXT]
    assert cross_modal_cosine(visual, text) == pytest.approx(
        unit(visual).mean(axis=0) @ unit(text).mean(axis=0)
    )
    assert observe_pairs(case.states, case.groups)[2]["cross_modal_cosine"][2] == pytest.approx(
        cross_modal_cosine(visual, text)
    )
