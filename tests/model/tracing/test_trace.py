"""A trace of the tiny models: the parts it finds, the model after it, and its memory."""

import copy
from dataclasses import dataclass, replace

import pytest
import torch
from support.allocations import allocations
from support.cases import model_of
from support.expected_parts import PARTS
from support.hooks import hooks_of
from support.plain_modules import Plain, made
from support.tiny_inputs import tiny_inputs
from support.tiny_models import (
    LANGUAGE_MODELS,
    VISION_ENCODERS,
    tiny_model,
)
from torch import Tensor, nn
from transformers import BatchFeature

from normprobe import NormprobeError, find_parts
from normprobe.model.tracing.observation import other_pixels, other_words
from normprobe.model.tracing.recording import record, sketch, tensors, watched
from normprobe.model.tracing.trace import (
    UnreadWeights,
    find_or_trace,
    retraced,
    trace_parts,
    traced_example,
    verify,
    with_named,
)


def model_and_inputs(model_type, batch_size=2):
    model = tiny_model(model_type)
    return model, tiny_inputs(model, batch_size)


# --- what it finds -------------------------------------------------------------------------------


def test_deepstack():
    traced = trace_parts(*model_and_inputs("qwen3_vl"))
    assert (traced.fusion, traced.injected_layers) == ("in-sequence", (2, 3))


@pytest.mark.parametrize("model_type", LANGUAGE_MODELS)
def test_language_models(model_type):
    traced = trace_parts(*model_and_inputs(model_type))
    assert traced.decoder_layers == PARTS[model_type].decoder_layers
    assert traced.text_embedding == PARTS[model_type].text_embedding
    assert traced.visual_positions is traced.vision_encoder is traced.projector is None
    assert traced.fusion == "none"


@pytest.mark.parametrize("model_type", [t for t in VISION_ENCODERS if t.endswith("_vision_model")])
def test_bare_vision_encoders(model_type):
    traced = trace_parts(*model_and_inputs(model_type))
    assert traced.vision_encoder == ""
    assert traced.decoder_layers is traced.text_embedding is traced.projector is None


# --- what it changes -----------------------------------------------------------------------------


def test_other_pixels_keep_empty_tiles_and_places():
    tiles = torch.randn(2, 3, 4)
    tiles[1] = 0.0
    patches = torch.cat([torch.arange(4.0).view(4, 1), torch.randn(4, 5)], dim=1)
    mask = torch.ones(2, 3)
    ids = torch.tensor([[1, 2]])
    inputs = {"tiles": tiles, "lists": [patches], "mask": mask, "ids": ids}
    changed = other_pixels(inputs)
    assert not changed["tiles"][1].any() and (changed["tiles"][0] != tiles[0]).all()
    assert torch.equal(changed["lists"][0][:, 0], patches[:, 0])
    assert (changed["lists"][0][:, 1:] != patches[:, 1:]).all()
    assert changed["mask"] is mask and changed["ids"] is ids


def test_other_pixels_of_an_image_in_one_colour():
    image = torch.full((1, 3, 4, 4), 0.3)
    assert (other_pixels({"image": image})["image"] != image).all()


def test_few_numbers_beside_the_pixels_are_no_pixels():
    inputs = {"pixels": torch.randn(1, 3, 16, 16), "state": torch.randn(1, 7)}
    assert other_pixels(inputs)["state"] is inputs["state"]


def test_no_pixels():
    assert other_pixels({"ids": torch.tensor([[1, 2]])}) is None


def test_other_words_spare_ids_with_a_special_meaning():
    """Begin, image and its neighbours, padding, and words that are also at such positions."""
    ids = torch.tensor(
        [
            [1, 20, 21, 22, 4, 3, 3, 5, 23, 24, 2, 0],
            [1, 22, 23, 20, 4, 3, 3, 5, 24, 5, 21, 2],
        ]
    )
    image = ids == 3
    image[:, 6] = False  # a structural token: pixels do not change it, its id is the image's
    changed, (replaced,) = other_words({"ids": ids}, ["ids"], {(2, 12): image})
    assert torch.equal(replaced, changed["ids"] != ids)
    assert torch.equal(replaced, ids >= 20)
    assert set(changed["ids"][replaced].tolist()) <= {20, 21, 22, 23, 24}


def test_other_words_of_the_callers_choice():
    ids = torch.tensor([[1, 3, 3, 9]])
    changed, _ = other_words({"ids": ids}, ["ids"], {(1, 4): ids == 3}, text_ids=[8, 9])
    assert changed["ids"].tolist() == [[1, 3, 3, 8]]


@pytest.mark.parametrize("text_ids", [[8, 10], [9]])
def test_words_of_the_callers_choice_that_tell_nothing(text_ids: list[int]) -> None:
    """None of them stands in the prompt, or there is no other to put in its place."""
    ids = torch.tensor([[1, 3, 3, 9]])
    with pytest.raises(NormprobeError, match="two different ordinary words"):
        other_words({"ids": ids}, ["ids"], {(1, 4): ids == 3}, text_ids=text_ids)


def test_a_list_with_empty_places_is_watched() -> None:
    """As layers of OpenFlamingo, of which some attend to no picture."""
    blocks = nn.ModuleList([None, *(nn.Sequential(nn.Linear(2, 2)) for _ in range(4))])
    assert set(watched(blocks)) == {"", "1", "2", "3", "4"}


# --- what it leaves ------------------------------------------------------------------------------


def test_a_trace_leaves_the_model_and_the_inputs_as_they_were():
    model, inputs = model_and_inputs("llava")
    model(**inputs)  # transformers adds hooks of its own in the first forward
    hooks, before = hooks_of(model), {name: value.clone() for name, value in inputs.items()}
    model.train()
    state = torch.get_rng_state()
    trace_parts(model, inputs)
    assert all(module.training for module in model.modules())
    assert hooks_of(model) == hooks
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(inputs[name], value) for name, value in before.items())


@pytest.mark.parametrize("failing_run", [1, 2, 3])
def test_hooks_are_removed_when_a_forward_fails(failing_run):
    model, inputs = model_and_inputs("llava")
    model(**inputs)
    hooks, runs = hooks_of(model), []

    def fail(*_):
        runs.append(None)
        if len(runs) == failing_run:
            raise ZeroDivisionError

    handle = model.lm_head.register_forward_pre_hook(fail)
    with pytest.raises(ZeroDivisionError):
        trace_parts(model, inputs)
    handle.remove()
    assert hooks_of(model) == hooks


def test_three_forwards():
    model, inputs = model_and_inputs("qwen2_vl")
    runs = []
    model.register_forward_pre_hook(lambda *_: runs.append(None))
    trace_parts(model, inputs)
    assert len(runs) == 3


# --- what it keeps -------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.work = nn.Linear(512, 512)

    def forward(self, states: Tensor) -> Tensor:
        return states + self.work(states).tanh()


class Deep(nn.Module):
    """Twelve blocks on 64 tokens of 512 numbers: the states of a layer are 128 KiB."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(12))

    def forward(self, states: Tensor) -> Tensor:
        for block in self.blocks:
            states = block(states)
        return states


STATES = 64 * 512 * 4


def test_no_activation_outlives_its_module():
    model, inputs = Deep(), {"states": torch.randn(1, 64, 512)}
    with allocations() as plain:
        model(**inputs)
    with allocations() as traced:
        recording = record(model, inputs)
        kept = traced.held()
    sketches = [s for call in recording.values() for s in call.inputs + call.outputs]
    assert len(sketches) == 2 * 13
    assert kept < len(sketches) * 64 * 12 * 4  # eleven numbers a vector, and a little
    assert kept < STATES
    # Beside the copied input and the sketches: what it takes to make one sketch.
    assert traced.peak < plain.peak + STATES + kept + 4 * STATES


def test_sketches_are_small():
    found = sketch(torch.randn(2, 8, 1024))
    assert found.shape == (2, 8)
    assert found.vectors.numel() + found.moments.numel() == 16 * 11


def test_narrow_axes_are_joined():
    assert sketch(torch.randn(2, 5, 4, 8)).shape == (2, 5)
    assert sketch(torch.randn(3)).shape == ()


# --- parts by structure, by hand, or by a trace where the structure does not tell them ------------


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
    assert failure.value.remedy.startswith("pass one; or name it by hand")


def test_what_a_model_lacks_is_told_before_what_was_looked_for() -> None:
    """VisionLLM v2 gets attributes by a method of its own."""

    class Lacking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 4)

        def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor) -> torch.Tensor:
            return self.words(input_ids) + self.added_later

    inputs = {"input_ids": torch.ones(1, 3).long(), "pixel_values": torch.randn(1, 3, 4, 4)}
    with pytest.raises(NormprobeError) as failure:
        find_or_trace(Lacking(), {}, lambda: inputs)
    assert failure.value.problem.startswith("Lacking fails on these inputs: ")
    assert "no attribute 'added_later'" in failure.value.problem
    assert "; it was run to find its parts: " in failure.value.problem
    assert failure.value.remedy.startswith("if that is a part that its code adds later, ")


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


def test_tensors_of_a_dataclass_with_slots_are_found() -> None:
    """Isaac's stream of events."""

    @dataclass(slots=True)
    class Event:
        data: torch.Tensor
        begins: float = 0.0

    data = torch.ones(2)
    assert [*tensors([Event(data)])] == [data]


def test_a_part_that_was_named_stays_where_the_vision_side_is_traced_again() -> None:
    model, projector = model_of("llava"), "model.multi_modal_projector.linear_1"
    parts = with_named(model, find_parts(model), {"projector": projector})
    again = retraced(model, parts, tiny_inputs(model))
    assert again is not None and again.projector is not None
    assert again.projector.name == projector
    assert again.vision_encoder.name == trace_parts(model, tiny_inputs(model)).vision_encoder


def test_a_projector_that_what_stands_behind_it_hides_is_no_disagreement() -> None:
    """SlowFast-LLaVA pools its rows, and an inputs file says so."""
    model = model_of("llava")
    parts = find_parts(model)
    traced = replace(trace_parts(model, tiny_inputs(model)), projector=None)
    for behind in ("", "rows are pooled"):
        told = verify(replace(parts, behind=behind), traced).set_index("part")["agree"]
        assert told["projector"] == bool(behind)
        assert told.drop("projector").all()


def test_a_trace_without_a_projector_leaves_the_one_that_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """VideoLLaMB's is called once a sample, and no trace tells it then."""
    model = model_of("llava")
    parts, inputs = find_parts(model), tiny_inputs(model)
    other = replace(parts, projector=None, vision_encoder=parts.decoder_layers)
    monkeypatch.setattr("normprobe.model.tracing.trace._traced", lambda *_: other)
    again = retraced(model, parts, inputs)
    assert again is not None and again.projector == parts.projector is not None
    assert again.vision_encoder == other.vision_encoder


def test_beside_a_projector_that_is_named_the_encoder_is_traced() -> None:
    """LaViDa's stage went in silence."""
    model = made(Plain)
    inputs = {
        "tokens": torch.tensor([[1, *[Plain.place] * 4, 5, 9, 7]]),
        "image": torch.randn(1, 3, 8, 8),
    }
    named = {"projector": "connector", "decoder_layers": "blocks", "text_embedding": "words"}
    parts, found_by = find_or_trace(model, named, lambda: inputs)
    assert (found_by, parts.vision_encoder.name) == ("by hand", "vision")
    with pytest.raises(UnreadWeights):
        find_or_trace(model, named, lambda: inputs, unread=True)
    # And the projector beside an encoder that is named (LLaVAR).
    of_encoder = {**named, "projector": None, "vision_encoder": "vision"}
    named = {role: name for role, name in of_encoder.items() if name}
    parts, found_by = find_or_trace(model, named, lambda: inputs)
    assert (found_by, parts.projector.name) == ("by hand", "connector")


class _Names(Plain):
    """A class that tells its vision encoder and no text table."""

    def get_encoder(self, modality=""):
        return self.vision


def test_an_encoder_in_a_model_whose_table_nothing_tells_is_not_bare() -> None:
    """OdysseyAgent had no decoder layers to measure, as if it were a vision encoder."""
    model = made(_Names)
    prompt = {"tokens": torch.tensor([[1, *[Plain.place] * 4, 5, 9, 7]])}
    inputs = {**prompt, "image": torch.randn(1, 3, 8, 8)}
    assert find_parts(model).text_embedding is None
    parts, found_by = find_or_trace(model, {}, lambda: inputs)
    assert found_by == "trace"
    assert (parts.vision_encoder.name, parts.decoder_layers.name) == ("vision", "blocks")
    # Its code may open a file: then nothing that is passed is a picture.
    seen = {"visual_mask": prompt["tokens"] == Plain.place}
    parts, _ = find_or_trace(model, {}, lambda: {**prompt, **seen})
    assert (parts.vision_encoder.name, parts.decoder_layers.name) == ("vision", "blocks")

    def fail():
        raise NormprobeError("no", "none")

    parts, _ = find_or_trace(model, {}, fail)  # a trace that cannot run changes nothing
    assert parts.text_embedding is None and parts.vision_encoder.name == "vision"
