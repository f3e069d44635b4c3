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
from support.tiny_inputs import (
    RIGHT_PADDED,
    SPECIAL_IDS,
    UNBATCHABLE,
    collate,
    perturbed,
    tiny_inputs,
    tiny_samples,
)
from support.tiny_models import (
    ALL_TYPES,
    FIRST_TEXT,
    INDICATORS,
    LANGUAGE_MODELS,
    NEEDS,
    VISION_ENCODERS,
    VLM_TYPES,
    WITHOUT_IMAGES,
    tiny_model,
)


def model_or_skip(model_type):
    if model_type in NEEDS:
        pytest.importorskip(NEEDS[model_type], reason=f"{model_type} needs {NEEDS[model_type]}")
    return model_of(model_type)


def logits(model, inputs):
    """A row a token that the model read. GIT puts rows of the image before them."""
    with torch.no_grad():
        found = model(**inputs).logits
    if "input_ids" in inputs and "decoder_input_ids" not in inputs:
        found = found[:, -inputs["input_ids"].shape[1] :]
    return found.masked_fill(found < -1e30, 0.0)  # Chameleon forbids image tokens


def changed(before, after):
    return (after - before).abs().max() > 0.1 * before.std()


@pytest.mark.slow
@pytest.mark.parametrize("model_type", [*ALL_TYPES, *VISION_ENCODERS, *LANGUAGE_MODELS])
def test_models_are_small(model_type):
    model = model_or_skip(model_type)
    assert model.config.model_type == model_type
    assert not model.training
    for weight in model.parameters():
        assert weight.dtype == torch.float32
        assert torch.isfinite(weight).all()
    assert sum(weight.numel() * 4 for weight in model.parameters()) < 3e6


@pytest.mark.slow
@pytest.mark.parametrize("model_type", [name for name in ALL_TYPES if name not in WITHOUT_IMAGES])
def test_it_sees_its_image_reads_its_text_and_a_batch_is_its_samples(model_type):
    model = model_or_skip(model_type)
    inputs = tiny_inputs(model)
    plain = logits(model, inputs)
    assert changed(plain, logits(model, perturbed(inputs)))
    field = "input_ids" if "input_ids" in inputs else "decoder_input_ids"
    others = inputs[field].clone()
    others[0, 1] = FIRST_TEXT if others[0, 1] != FIRST_TEXT else FIRST_TEXT + 1
    assert changed(plain, logits(model, inputs | {field: others}))
    samples = tiny_samples(model, 4)
    for padding in ("right", "left"):
        together = logits(model, collate(samples, padding))
        assert torch.isfinite(together).all()
        if model_type in UNBATCHABLE or (padding == "left" and model_type in RIGHT_PADDED):
            continue
        for rows, sample in zip(together, samples, strict=True):
            alone = logits(model, sample)[0]
            rows = rows[: len(alone)] if padding == "right" else rows[-len(alone) :]
            torch.testing.assert_close(rows, alone, rtol=1e-3, atol=1e-3)


def test_models_repeat():
    first, second = tiny_model("llava", seed=3), tiny_model("llava", seed=3)
    assert all(map(torch.equal, first.parameters(), second.parameters()))


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
    assert set(members(without)) == {schema.VISUAL, schema.TEXT}


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
