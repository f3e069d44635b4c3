"""Every image-text-to-text type of transformers: parts, positions and numbers.

The parts that the module tree tells are held against a trace of the running model; the numbers
against float64 NumPy over states taken without hooks. ``make types`` prints the outcome as a table.
The types are those of the transformers that is installed: 95 with images in 5.23.
"""

import contextlib
from collections import Counter
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from support.agreement import assert_agrees
from support.capture import Layer, States, capture, replaced_forward
from support.cases import model_of, trace_of
from support.expected_parts import ExpectedParts
from support.reference import layers_table, observe_layers
from support.tiny.fragments import AUDIO, IMAGE, INDICATORS, MEDIA_END, MEDIA_START, VIDEO
from support.tiny.media import EITHER, VIDEOS_AS_IMAGES, media_of
from support.tiny_inputs import PROMPTLESS, SPECIAL_IDS, tiny_inputs, tiny_media
from support.tiny_models import ALL_TYPES, NEEDS, WITHOUT_IMAGES, build

from normprobe import NormprobeError, find_parts, probe_interface, probe_layers, schema
from normprobe.model.find.overrides import ADDED, CROSS_ATTENTION, DISCRETE
from normprobe.model.find.parts import Parts
from normprobe.model.measured_model import MeasuredModel, fitted
from normprobe.model.tracing.trace import verify

with_images = pytest.mark.parametrize(
    "model_type",
    [
        pytest.param(name, marks=pytest.mark.skipif(missing, reason=f"needs {NEEDS.get(name)}"))
        for name in ALL_TYPES
        if name not in WITHOUT_IMAGES
        for missing in [name in NEEDS and find_spec(NEEDS[name]) is None]
    ],
)


def names(parts: Parts) -> dict[str, str]:
    return {role: part.name for role, part in parts}


@with_images
def test_structure_and_trace_agree(model_type: str) -> None:
    model, inputs = model_of(model_type), tiny_inputs(model_of(model_type))
    parts = find_parts(model)
    traced = trace_of(model_type)
    table = verify(parts, traced)
    assert table["agree"].all(), table
    # Where features are added to text tokens, a trace sees that the sequence grew (UDOP).
    assert parts.fusion == traced.fusion or parts.fusion == ADDED
    rows = probe_layers(model, inputs, special_token_ids=SPECIAL_IDS).set_index(["group", "layer"])
    if traced.visual_positions is not None:
        visual = rows.loc[schema.VISUAL]
        seen = int(traced.visual_positions.sum())
        # Other pixels may get the same code of an image tokenizer.
        assert visual["tokens"].iloc[0] == seen or (parts.fusion == DISCRETE and seen)
        assert set(visual.index[visual["injection_norm_mean"] > 0]) == {*traced.injected_layers}


@with_images
def test_visual_tokens_are_those_that_pixels_change(model_type: str) -> None:
    model, inputs = model_of(model_type), tiny_inputs(model_of(model_type))
    parts = find_parts(model)
    traced = trace_of(model_type)
    if parts.fusion == CROSS_ATTENTION:
        assert traced.visual_positions is None
        return
    measured = MeasuredModel(model, parts, SPECIAL_IDS)
    entered = capture(model, inputs, _stack(parts)).layers[0].entered
    state = measured.read_stream(torch.from_numpy(entered))
    placed = fitted(measured.prompt_groups(inputs), state, parts)
    placeholders = (placed == schema.TOKEN_GROUPS.index(schema.VISUAL)).numpy()
    moved = traced.visual_positions.numpy()
    assert not (moved & ~placeholders).any()  # the rest of the placeholders is structural


#: Ids of placeholders, where it is not IMAGE alone; none: the prompt has no place for an image.
PLACEHOLDERS = {
    "ovis2": (IMAGE, *INDICATORS),
    "instructblipvideo": (VIDEO,),  # its images are videos
    **dict.fromkeys(("blip", "git", "idefics", "mllama", *PROMPTLESS), ()),
}


def count_by_hand(model_type: str, inputs: dict) -> Counter[str]:
    """How many tokens of each group a batch has, told by its ids and its padding alone."""
    decodes = model_type in PROMPTLESS
    ids = inputs["decoder_input_ids" if decodes else "input_ids"].tolist()
    kept = [[1] * len(row) for row in ids] if decodes else inputs["attention_mask"].tolist()
    placeholders = PLACEHOLDERS.get(model_type, (IMAGE,))
    found: Counter[str] = Counter()
    for row, mask in zip(ids, kept, strict=True):
        in_video = False
        for token, there in zip(row, mask, strict=True):
            if model_type in (*VIDEOS_AS_IMAGES, *EITHER) and token in (MEDIA_START, MEDIA_END):
                in_video = token == MEDIA_START
            if not there:
                continue
            if token in placeholders:
                found["video" if in_video else "placeholder"] += 1
            elif token in (VIDEO, AUDIO):
                found["video" if token == VIDEO else "audio"] += 1
            else:
                found["special" if token in SPECIAL_IDS else "text"] += 1
    found["non_visual"] = found["text"] + found["special"]
    return found


def count_in_table(model: torch.nn.Module, model_type: str, inputs: dict) -> Counter[str]:
    """The same of layers.csv; the tokenizer calls all placeholders special."""
    rows = probe_layers(model, inputs, special_token_ids=(*SPECIAL_IDS, VIDEO, AUDIO))
    found = Counter(rows[rows["layer"] == 0].set_index("group")["tokens"].to_dict())
    visual = found.pop("visual", 0) + found.pop("structural", 0)
    found["placeholder"] = visual if PLACEHOLDERS.get(model_type, (IMAGE,)) else 0
    return found


@with_images
@pytest.mark.parametrize("batch_size", [1, 4])
def test_tokens_by_group_are_those_of_the_ids(model_type: str, batch_size: int) -> None:
    if model_type == "udop":
        pytest.skip("each word carries the features of the patch that it stands on")
    model = model_of(model_type)
    inputs = tiny_inputs(model, batch_size)
    by_hand = count_by_hand(model_type, inputs)
    assert count_in_table(model, model_type, inputs) == by_hand
    assert not by_hand["video"]
    assert not by_hand["audio"]


@with_images
@pytest.mark.parametrize("batch_size", [1, 4])
def test_tokens_of_videos_and_sounds_are_groups_of_their_own(
    model_type: str, batch_size: int
) -> None:
    model = model_of(model_type)
    taken = media_of(model)
    if not taken:
        pytest.skip("takes images alone")
    inputs = tiny_media(model, batch_size)
    by_hand = count_by_hand(model_type, inputs)
    assert count_in_table(model, model_type, inputs) == by_hand
    assert {name for name in ("video", "audio") if by_hand[name]} == taken


@with_images
def test_numbers_of_the_layers(model_type: str) -> None:
    model, inputs = model_of(model_type), tiny_inputs(model_of(model_type))
    parts = find_parts(model)
    table = probe_layers(model, inputs, special_token_ids=SPECIAL_IDS)
    states = _one_stream(capture(model, inputs, _stack(parts)), model_type, model)
    expected = layers_table(observe_layers(states, _groups(model_type, parts, inputs, states)))
    found = table.set_index(["layer", "group"])
    for key, row in expected.items():
        if np.isfinite(row["norm_mean"]):
            assert_agrees(found.loc[key], row, (model_type, key))


@with_images
def test_numbers_of_the_interface(model_type: str) -> None:
    model, inputs = model_of(model_type), tiny_inputs(model_of(model_type))
    parts = find_parts(model)
    table = probe_interface(model, inputs, special_token_ids=SPECIAL_IDS)
    found = table.set_index(["stage", "group"])["norm_mean"]
    outputs: list[np.ndarray] = []
    with contextlib.ExitStack() as stack:
        if parts.projector is not None:
            stack.enter_context(
                replaced_forward(parts.projector.module, lambda _, out: outputs.extend(_rows(out)))
            )
        states = capture(model, inputs, _stack(parts))
    if "aspect_ratio_mask" in inputs:  # Mllama pads with empty tiles
        there = inputs["aspect_ratio_mask"].bool().numpy()
        outputs = [array[there] for array in outputs]
    if parts.projector is not None:
        expected = np.concatenate([_norms(array) for array in outputs])
        rows = table[table["stage"] == schema.PROJECTOR_OUTPUT]
        measured = np.average(rows["norm_mean"], weights=rows["tokens"])
        assert measured == pytest.approx(expected.mean(), rel=1e-4)
    entered = _one_stream(states, model_type, model).layers[0].entered
    groups = _groups(model_type, parts, inputs, states)
    for group in (schema.VISUAL, schema.STRUCTURAL, schema.TEXT):
        if (groups == group).any():
            expected = _norms(entered[groups == group]).mean()
            assert found[schema.DECODER_INPUT, group] == pytest.approx(expected, rel=1e-4)
    weight = parts.text_embedding.module.weight.detach().double().numpy()
    mean = np.linalg.norm(weight, axis=1).mean()
    assert found[schema.TEXT_EMBEDDING_TABLE, schema.ALL_ROWS] == pytest.approx(mean, rel=1e-5)


#: What the decoder does with a row behind the projector, where it does something.
CHANGED_BEHIND = {
    "blip-2": "adds positions",
    "florence2": "adds positions",
    "git": "takes its class row, too",
    "granite_docling": "multiplies",
    "instructblip": "adds positions",
    "instructblipvideo": "adds positions",
    "kosmos-2": "multiplies and adds positions",
    "kosmos-2.5": "multiplies and adds positions",
    "molmo2": "adds it to a word's",
    "muse_glimmer": "normalises",
    "muse_spark": "normalises",
    "udop": "adds it to a word's",
}


@with_images
@pytest.mark.parametrize("batch_size", [1, 4])
def test_what_the_projector_hands_over_enters_the_decoder(model_type: str, batch_size: int) -> None:
    model = model_of(model_type)
    table = probe_interface(
        model, tiny_inputs(model, batch_size), special_token_ids=SPECIAL_IDS
    ).set_index(["stage", "group"])
    stages = ((stage, schema.VISUAL) for stage in (schema.PROJECTOR_OUTPUT, schema.DECODER_INPUT))
    left, entered = (table.loc[stage] if stage in table.index else None for stage in stages)
    if left is None or entered is None or left["tokens"] > entered["tokens"]:
        return
    same = left["norm_mean"] == pytest.approx(entered["norm_mean"], rel=1e-5)
    assert same != (model_type in CHANGED_BEHIND), model_type


@with_images
def test_parts_on_the_meta_device(model_type: str) -> None:
    with torch.device("meta"):
        on_meta = find_parts(build(model_type))
    real = find_parts(model_of(model_type))
    assert names(on_meta) == names(real)
    assert on_meta.image_token_ids == real.image_token_ids


@pytest.mark.parametrize("model_type", WITHOUT_IMAGES)
def test_types_without_images_say_so(model_type: str) -> None:
    parts = find_parts(model_of(model_type))
    assert parts.vision_encoder is None
    assert parts.projector is None


def _stack(parts: Parts) -> ExpectedParts:
    return ExpectedParts(decoder_layers=parts.decoder_layers.name)


def _rows(output: object) -> list[np.ndarray]:
    """What a projector returns: a tensor, one an image, a tuple led by it, or a model output."""
    if isinstance(output, torch.Tensor):
        return [output.detach().double().numpy()]
    if isinstance(output, list):
        return [row for item in output for row in _rows(item)]
    if isinstance(output, tuple):
        return _rows(output[0])
    projected = output.get("pooler_output")  # what transformers hands to the language model
    return _rows(output.last_hidden_state if projected is None else projected)


def _norms(array: np.ndarray) -> np.ndarray:
    return np.linalg.norm(array.reshape(-1, array.shape[-1]), axis=-1)


def _one_stream(states: States, model_type: str, model: torch.nn.Module) -> States:
    """What the documentation says is reported where a layer carries several streams."""
    config = model.config.get_text_config(decoder=True)
    read = {
        "gemma3n": lambda state: state[config.altup_active_idx],
        "glm5_next": lambda state: state.mean(axis=2),
        "qwen4_exp": lambda state: np.mean(np.split(state, config.hc_count, axis=-1), axis=0),
    }.get(model_type, lambda state: state)
    states.layers = [Layer(read(layer.entered), read(layer.left)) for layer in states.layers]
    return states


def _groups(model_type: str, parts: Parts, inputs: dict, states: States) -> np.ndarray:
    """Groups by the trace: pixels tell visual tokens, ids the special ones, the mask padding."""
    decodes = parts.fusion == CROSS_ATTENTION and "decoder_input_ids" in inputs
    ids = inputs["decoder_input_ids" if decodes else "input_ids"].numpy()
    groups = np.full(ids.shape, schema.TEXT, dtype="<U16")
    groups[np.isin(ids, list(SPECIAL_IDS))] = schema.SPECIAL
    groups[np.isin(ids, parts.image_token_ids)] = schema.STRUCTURAL
    mask = inputs.get("attention_mask")
    if not decodes and mask is not None and tuple(mask.shape) == ids.shape:
        groups[mask.numpy() == 0] = ""
    moved = trace_of(model_type).visual_positions
    if moved is None:
        return groups
    more = moved.shape[1] - groups.shape[1]
    before = more if parts.fusion == "prepended" else 0
    groups = np.pad(groups, ((0, 0), (before, more - before)), constant_values=schema.STRUCTURAL)
    groups[moved.numpy()] = schema.VISUAL
    if parts.fusion == DISCRETE:
        groups[groups == schema.STRUCTURAL] = schema.VISUAL
    return groups


def test_what_is_no_model_says_so() -> None:
    with pytest.raises(NormprobeError, match="neither a vision encoder"):
        find_parts(torch.nn.Linear(2, 2))
