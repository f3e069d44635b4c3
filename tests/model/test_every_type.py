"""Every image-text-to-text type of transformers, built and traced once: parts, positions, numbers.

The parts that the module tree tells are held against a trace of the running model; the numbers
against float64 NumPy over states taken without hooks. ``make types`` prints the outcome as a table.
The types are those of the transformers that is installed: 95 with images in 5.23.
"""

import contextlib
import csv
import importlib.util
from collections import Counter
from dataclasses import replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.agreement import assert_agrees
from support.capture import Layer, States, capture, replaced_forward
from support.expected_parts import PARTS, ExpectedParts
from support.flat import flat
from support.reference import layers_table, observe_layers
from support.tiny.fragments import AUDIO, IMAGE, INDICATORS, MEDIA_END, MEDIA_START, VIDEO
from support.tiny.media import EITHER, VIDEOS_AS_IMAGES, media_of
from support.tiny_inputs import PROMPTLESS, SPECIAL_IDS, tiny_inputs, tiny_media
from support.tiny_models import ALL_TYPES, NEEDS, WITHOUT_IMAGES, build, tiny_model
from torch import nn

from normprobe import NormprobeError, find_parts, probe_interface, probe_layers, schema
from normprobe.model import provenance
from normprobe.model.find.norms import find_norm_placement, norm_placement
from normprobe.model.find.overrides import ADDED, CROSS_ATTENTION, DISCRETE
from normprobe.model.find.parts import Parts
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.provenance import fitted
from normprobe.model.tracing.trace import TracedParts, trace_parts, verify
from normprobe.tidy import select

_SPEC = importlib.util.spec_from_file_location(
    "supported_models", Path(__file__).parents[2] / ".ci/supported_models.py"
)
supported = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(supported)
TABLE = {row["model_type"]: row for row in csv.DictReader(supported.TABLE.open(encoding="utf-8"))}

#: The tokenizer calls all placeholders special.
ALL_SPECIAL = (*SPECIAL_IDS, VIDEO, AUDIO)


class Seen:
    """One type: its tiny model and a batch of four, and what is found in them, each once."""

    def __init__(self, model_type: str) -> None:
        self.type = model_type
        self.model = tiny_model(model_type)
        self.inputs = tiny_inputs(self.model, 4)
        self.parts = find_parts(self.model)

    @cached_property
    def traced(self) -> TracedParts:
        return trace_parts(self.model, self.inputs)

    @cached_property
    def layers(self) -> pd.DataFrame:
        return probe_layers(self.model, self.inputs, special_token_ids=ALL_SPECIAL)

    @cached_property
    def interface(self) -> pd.DataFrame:
        return probe_interface(self.model, self.inputs, special_token_ids=ALL_SPECIAL)

    @cached_property
    def forward(self) -> tuple[States, list[np.ndarray]]:
        """States without hooks, of one stream; and what the projector returns."""
        returned: list[np.ndarray] = []
        with contextlib.ExitStack() as stack:
            if projector := self.parts.projector:
                keep = replaced_forward(
                    projector.module, lambda _, out: returned.extend(_rows(out))
                )
                stack.enter_context(keep)
            decoder = ExpectedParts(decoder_layers=self.parts.decoder_layers.name)
            states = capture(self.model, self.inputs, decoder)
        return _one_stream(states, self.type, self.model), returned

    @cached_property
    def groups(self) -> np.ndarray:
        """Pixels tell visual tokens, ids the special ones, the mask padding."""
        parts, inputs = self.parts, self.inputs
        decodes = parts.fusion == CROSS_ATTENTION and "decoder_input_ids" in inputs
        ids = inputs["decoder_input_ids" if decodes else "input_ids"].numpy()
        groups = np.full(ids.shape, schema.TEXT, dtype="<U16")
        groups[np.isin(ids, ALL_SPECIAL)] = schema.SPECIAL
        groups[np.isin(ids, parts.image_token_ids)] = schema.STRUCTURAL
        mask = inputs.get("attention_mask")
        if not decodes and mask is not None and tuple(mask.shape) == ids.shape:
            groups[mask.numpy() == 0] = ""
        moved = self.traced.visual_positions
        if moved is None:
            return groups
        more = moved.shape[1] - groups.shape[1]
        before = more if parts.fusion == "prepended" else 0
        padded = ((0, 0), (before, more - before))
        groups = np.pad(groups, padded, constant_values=schema.STRUCTURAL)
        groups[moved.numpy()] = schema.VISUAL
        if parts.fusion == DISCRETE:
            groups[groups == schema.STRUCTURAL] = schema.VISUAL
        return groups


def needed(model_type: str) -> object:
    package = NEEDS.get(model_type, "torch")
    skipped = pytest.mark.skipif(find_spec(package) is None, reason=f"needs {package}")
    return pytest.param(model_type, marks=skipped)


@pytest.fixture(scope="module", params=[needed(t) for t in ALL_TYPES if t not in WITHOUT_IMAGES])
def seen(request: pytest.FixtureRequest) -> Seen:
    torch.manual_seed(0)
    return Seen(request.param)


def named(parts: Parts) -> dict[str, str]:
    return {role: part.name for role, part in parts}


def test_structure_and_trace_agree(seen: Seen) -> None:
    """The two share no rule: where they agree, both are right."""
    parts, traced = seen.parts, seen.traced
    table = verify(parts, traced)
    assert table["agree"].all(), table
    # Where features are added to text tokens, a trace sees that the sequence grew (UDOP).
    assert parts.fusion == traced.fusion or parts.fusion == ADDED
    if traced.visual_positions is not None:
        visual = select(seen.layers, "norm", group=schema.VISUAL)
        found = int(traced.visual_positions.sum())
        # Other pixels may get the same code of an image tokenizer.
        assert visual["tokens"].iloc[0] == found or (parts.fusion == DISCRETE and found)
        injected = select(seen.layers, "injection_norm", group=schema.VISUAL)
        assert set(injected["layer"][injected["mean"] > 0]) == {*traced.injected_layers}


def test_parts_without_weights_are_the_same(seen: Seen) -> None:
    with torch.device("meta"):
        on_meta = find_parts(build(seen.type))
    assert named(on_meta) == named(seen.parts)
    assert on_meta.image_token_ids == seen.parts.image_token_ids
    if seen.type in PARTS:
        expected = PARTS[seen.type]
        assert seen.parts.image_token_ids == expected.image_token_ids
        for role in ("vision_encoder", "projector", "text_embedding", "decoder_layers"):
            part, name = getattr(seen.parts, role), getattr(expected, role)
            assert (part and part.name) == name
            assert part is None or part.module is seen.model.get_submodule(name)


def test_norm_placement_and_the_table_of_types(seen: Seen) -> None:
    """`normprobe inspect` prints what the code finds; weights and the layer make no difference."""
    row = supported.row(seen.type, seen.model, seen.parts, seen.traced)
    assert TABLE[seen.type] == row, "run `make models`"
    with torch.device("meta"):
        bare = build(seen.type)
    assert find_norm_placement(bare, find_parts(bare)) == row["norm_placement"]
    config = seen.model.config.get_text_config(decoder=True)
    run, width = partial(seen.model, **seen.inputs), getattr(config, "hidden_size", None)
    for layer in seen.parts.decoder_layers.module:
        assert norm_placement(layer, run, hidden_size=width) == row["norm_placement"]


def test_visual_tokens_are_those_that_pixels_change(seen: Seen) -> None:
    if seen.parts.fusion == CROSS_ATTENTION:
        assert seen.traced.visual_positions is None
        return
    measured = MeasuredModel(seen.model, seen.parts, SPECIAL_IDS)
    state = measured.decoder_input(seen.inputs)
    placed = fitted(measured.placed(seen.inputs).groups, state, seen.parts)
    placeholders = (placed == schema.TOKEN_GROUPS.index(schema.VISUAL)).numpy()
    moved = seen.traced.visual_positions.numpy()
    assert not (moved & ~placeholders).any()  # the rest of the placeholders is structural


def test_other_pixels_tell_the_tokens_that_ids_declare(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is known of the model but its parts, as of a plain module: the same groups.

    What ids alone say is which rows beside an image are its marks.
    """
    if seen.parts.fusion in (CROSS_ATTENTION, DISCRETE):
        return  # no rows of pixels; other pixels may get the same code
    declared = MeasuredModel(seen.model, seen.parts, ALL_SPECIAL)
    state = declared.decoder_input(seen.inputs)
    expected = declared.batch(seen.inputs).groups_at(state)
    monkeypatch.setattr(provenance, "is_native", lambda model: False)
    parts = replace(seen.parts, image_token_ids=(), video_token_ids=(), audio_token_ids=())
    found = MeasuredModel(seen.model, parts, ALL_SPECIAL).batch(seen.inputs).groups_at(state)
    marks = expected == schema.TOKEN_GROUPS.index(schema.STRUCTURAL)
    assert torch.equal(found[~marks], expected[~marks])
    assert not (found[marks] == schema.TOKEN_GROUPS.index(schema.VISUAL)).any()


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
    if found["special"]:
        found["non_visual"] = found["text"] + found["special"]
    return found


def count_in_table(rows: pd.DataFrame, model_type: str) -> Counter[str]:
    """The same of layers.csv."""
    found = Counter(select(rows, "norm", layer=0).set_index("group")["tokens"].to_dict())
    visual, videos = found.pop("visual", 0), found["video"]
    images = found.pop("image", 0 if videos else visual)
    assert visual == images + videos
    images += found.pop("structural", 0)
    found["placeholder"] = images if PLACEHOLDERS.get(model_type, (IMAGE,)) else 0
    return found


def test_tokens_by_group_are_those_of_the_ids(seen: Seen) -> None:
    if seen.type == "udop":
        pytest.skip("each word carries the features of the patch that it stands on")
    by_hand = count_by_hand(seen.type, seen.inputs)
    assert count_in_table(seen.layers, seen.type) == by_hand
    assert not by_hand["video"] and not by_hand["audio"]


def test_tokens_of_videos_and_sounds_are_groups_of_their_own(seen: Seen) -> None:
    taken = media_of(seen.model)
    if not taken:
        return  # it takes images alone
    inputs = tiny_media(seen.model, 4)
    by_hand = count_by_hand(seen.type, inputs)
    rows = probe_layers(seen.model, inputs, special_token_ids=ALL_SPECIAL)
    assert count_in_table(rows, seen.type) == by_hand
    assert {name for name in ("video", "audio") if by_hand[name]} == taken


def test_numbers_of_the_layers(seen: Seen) -> None:
    states, _ = seen.forward
    expected = layers_table(observe_layers(states, seen.groups))
    found = flat(seen.layers).set_index(["layer", "group"])
    for key, row in expected.items():
        if np.isfinite(row["norm_mean"]):
            assert_agrees(found.loc[key], row, (seen.type, key))


def test_numbers_of_the_interface(seen: Seen) -> None:
    norms = select(seen.interface, "norm")
    found = norms.set_index(["stage", "group"])["mean"]
    states, returned = seen.forward
    if "aspect_ratio_mask" in seen.inputs:  # Mllama pads with empty tiles
        there = seen.inputs["aspect_ratio_mask"].bool().numpy()
        returned = [array[there] for array in returned]
    if seen.type == "gemma4_unified":  # its projector takes patches, padded ones among them
        there = (seen.inputs["image_position_ids"] != -1).all(-1).numpy()
        returned = [array[there] for array in returned]
    if seen.parts.projector is not None:
        expected = np.concatenate([_norms(array) for array in returned])
        rows = norms[norms["stage"] == schema.PROJECTOR_OUTPUT]
        measured = np.average(rows["mean"], weights=rows["tokens"])
        assert measured == pytest.approx(expected.mean(), rel=1e-4)
    entered = states.layers[0].entered
    for group in (schema.VISUAL, schema.STRUCTURAL, schema.TEXT):
        if (seen.groups == group).any():
            expected = _norms(entered[seen.groups == group]).mean()
            assert found[schema.DECODER_INPUT, group] == pytest.approx(expected, rel=1e-4)
    weight = seen.parts.text_embedding.module.weight.detach().double().numpy()
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


def test_what_the_projector_hands_over_enters_the_decoder(seen: Seen) -> None:
    table = select(seen.interface, "norm").set_index(["stage", "group"])
    stages = ((stage, schema.VISUAL) for stage in (schema.PROJECTOR_OUTPUT, schema.DECODER_INPUT))
    left, entered = (table.loc[stage] if stage in table.index else None for stage in stages)
    if left is None or entered is None or left["tokens"] > entered["tokens"]:
        return
    same = left["mean"] == pytest.approx(entered["mean"], rel=1e-5)
    assert same != (seen.type in CHANGED_BEHIND)


@pytest.mark.parametrize("model_type", WITHOUT_IMAGES)
def test_types_without_images_say_so(model_type: str) -> None:
    model = tiny_model(model_type)
    parts = find_parts(model)
    assert parts.vision_encoder is parts.projector is None
    assert TABLE[model_type] == supported.row(model_type, model, parts, None)


def test_every_type_is_in_the_table() -> None:
    assert set(TABLE) == set(ALL_TYPES)


def test_what_is_no_model_says_so() -> None:
    with pytest.raises(NormprobeError, match="neither a vision encoder"):
        find_parts(nn.Linear(2, 2))


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


def _one_stream(states: States, model_type: str, model: nn.Module) -> States:
    """What the documentation says is reported where a layer carries several streams."""
    config = model.config.get_text_config(decoder=True)
    read = {
        "gemma3n": lambda state: state[config.altup_active_idx],
        "glm5_next": lambda state: state.mean(axis=2),
        "qwen4_exp": lambda state: np.mean(np.split(state, config.hc_count, axis=-1), axis=0),
    }.get(model_type, lambda state: state)
    states.layers = [Layer(read(layer.entered), read(layer.left)) for layer in states.layers]
    return states
