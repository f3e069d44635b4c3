"""Parts by structure, by hand, or by a trace where the structure does not tell them."""

import copy

import pytest
from support.cases import model_of
from support.tiny_inputs import tiny_inputs
from transformers import BatchFeature

from normprobe import NormprobeError, find_parts
from normprobe.model.tracing.trace import find_or_trace, traced_example, verify


def no_example():
    raise AssertionError("no example is needed")


@pytest.fixture
def model():
    return copy.deepcopy(model_of("llava"))


def example_of(model):
    return lambda: BatchFeature(tiny_inputs(model))


def test_structure_needs_no_example(model):
    assert find_or_trace(model, {}, no_example) == (find_parts(model), "structure")


def test_parts_named_by_hand_are_not_traced(model):
    named = {"projector": "model.multi_modal_projector.linear_2"}
    parts, found_by = find_or_trace(model, named, no_example)
    assert found_by == "by hand"
    assert parts.projector.name == named["projector"]
    with pytest.raises(NormprobeError, match="no module 'nowhere'"):
        find_or_trace(model, {"projector": "nowhere"}, no_example)


def test_a_trace_finds_what_the_structure_does_not_tell(model):
    expected, example = find_parts(model), example_of(model)
    model.config.text_config.num_hidden_layers += 1  # no list has that many layers
    parts, found_by = find_or_trace(model, {}, example)
    assert found_by == "trace"
    assert dict(parts) == dict(expected)
    assert parts.image_token_ids == ()
    assert parts.class_rows == expected.class_rows


def test_where_the_trace_fails_too_the_first_error_is_raised(model):
    model.config.text_config.num_hidden_layers += 1

    def fail():
        raise NormprobeError("no sample has an image", "pass one")

    with pytest.raises(NormprobeError, match="no decoder layers found") as failure:
        find_or_trace(model, {}, fail)
    assert failure.value.problem.endswith("fails, too: no sample has an image")
    assert failure.value.remedy.startswith("name it by hand")


def test_why_a_trace_fails_is_told(model):
    model.config.text_config.num_hidden_layers += 1
    inputs = {name: value for name, value in tiny_inputs(model).items() if name != "input_ids"}
    with pytest.raises(NormprobeError, match=r"no decoder layers found.*fails on these inputs"):
        find_or_trace(model, {}, lambda: inputs)


def test_parts_in_use_beside_a_trace(model):
    parts = find_parts(model)
    traced = traced_example(model, parts, BatchFeature(tiny_inputs(model)))
    assert verify(parts, traced)["agree"].all()


@pytest.mark.parametrize("model_type", ["clip", "siglip2", "clip_vision_model"])
def test_the_vision_side_of_a_dual_encoder_runs_alone(model_type):
    model = model_of(model_type)
    parts = find_parts(model)
    traced = traced_example(model, parts, tiny_inputs(model))
    assert verify(parts, traced)["agree"].all()
    assert model.get_submodule(traced.encoder_layers)
