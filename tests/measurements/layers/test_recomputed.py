"""Each planted fault is found when a sample is recomputed without hooks."""

import copy
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import pytest
import torch
from support.cases import model_of
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import ALL_TYPES, NEEDS, VLM_TYPES, WITHOUT_IMAGES
from torch import nn

from normprobe import NormprobeError, find_parts
from normprobe.hooks import on_output
from normprobe.measurements.layers import measure, recomputed
from normprobe.measurements.layers.recomputed import RETENTION, STATES, differences
from normprobe.model.captured_states import TOKENS, in_doubt
from normprobe.model.find.parts import Part
from normprobe.model.measured_model import MeasuredBatch, MeasuredModel
from normprobe.model.tracing.trace import trace_parts
from normprobe.schema import (
    ATTENTION_INPUT,
    PADDING,
    PAIR,
    PAIR_METRICS,
    SAMPLE_METRICS,
    TOKEN_METRICS,
    VISUAL,
)

FLOAT32 = torch.float32


def measured(model_type: str = "llava", **changed: Any) -> MeasuredModel:
    model = model_of(model_type)
    parts = replace(find_parts(model), **changed)
    return MeasuredModel(model, parts, SPECIAL_IDS, found_by="by hand")  # else refused before


def found_in(model: MeasuredModel) -> dict[str, float | str]:
    inputs = tiny_inputs(model.model)
    return differences(model, inputs, trace_parts(model.model, inputs))


def doubted(model: MeasuredModel) -> set[str]:
    return set(in_doubt(found_in(model), FLOAT32))


OF_PAIRS = {*PAIR_METRICS, RETENTION} - {"attention_input_cosine"}


@pytest.mark.parametrize("model_type", VLM_TYPES)
def test_sound_numbers_are_confirmed(model_type: str) -> None:
    found = found_in(measured(model_type))
    inside = {ATTENTION_INPUT, "attention_input_cosine"}
    assert {*TOKEN_METRICS, *SAMPLE_METRICS, *OF_PAIRS, TOKENS, STATES, *inside} == set(found)
    assert {name for name in found if isinstance(found[name], str)} == inside
    assert max(value for value in found.values() if not isinstance(value, str)) < 1e-5
    assert in_doubt(found, FLOAT32) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "model_type",
    [
        pytest.param(name, marks=pytest.mark.skipif(missing, reason=f"needs {NEEDS.get(name)}"))
        for name in ALL_TYPES
        if name not in (*VLM_TYPES, *WITHOUT_IMAGES)
        for missing in [name in NEEDS and find_spec(NEEDS[name]) is None]
    ],
)
def test_sound_numbers_of_every_type_are_confirmed(model_type: str) -> None:
    assert in_doubt(found_in(measured(model_type)), FLOAT32) == []


def test_what_is_not_recomputed_says_why() -> None:
    found = found_in(measured("mllama"))
    assert str(found[TOKENS]).startswith("text attends to the image")
    assert not OF_PAIRS & set(found)


@pytest.mark.parametrize("padding", ["right", "left"])
def test_a_padded_batch_is_confirmed(padding: Literal["right", "left"]) -> None:
    model = measured("qwen2_5_vl")
    inputs = tiny_inputs(model.model, 4, padding)
    found = differences(model, inputs, trace_parts(model.model, inputs))
    assert in_doubt(found, FLOAT32) == []


def test_the_model_is_left_as_it_was() -> None:
    model = measured()
    found_in(model)
    assert not any("forward" in vars(module) for module in model.model.modules())


# --- planted faults -----------------------------------------------------------------------------


def attach_elsewhere(
    monkeypatch: pytest.MonkeyPatch, of_layer: Callable[[nn.Module], nn.Module]
) -> None:
    """Hook another module than the layer to see what leaves it."""
    monkeypatch.setattr(measure, "on_output", lambda layer, see: on_output(of_layer(layer), see))


def test_a_hook_on_the_wrong_module(monkeypatch: pytest.MonkeyPatch) -> None:
    model = measured()
    attach_elsewhere(monkeypatch, lambda layer: layer.post_attention_layernorm)
    assert {"norm", "cosine", "angle", *SAMPLE_METRICS, "cross_modal_cosine"} <= doubted(model)


def test_layers_of_another_part() -> None:
    encoder = find_parts(model_of("llava")).vision_encoder
    assert encoder is not None
    name = f"{encoder.name}.encoder.layers"
    layers = Part(name, model_of("llava").get_submodule(name))
    with pytest.raises(NormprobeError, match="positions"):
        doubted(measured(decoder_layers=layers))


def test_the_final_norm_counted_in() -> None:
    parts = find_parts(model_of("llava"))
    assert parts.decoder_layers is not None
    language = model_of("llava").get_submodule(parts.decoder_layers.name.rpartition(".")[0])
    layers = [*parts.decoder_layers.module.children(), language.norm]
    counted_in = Part(parts.decoder_layers.name, nn.ModuleList(layers))
    assert STATES in doubted(measured(decoder_layers=counted_in))


def test_the_final_norm_read_for_the_last_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = measured()
    *_, last = model.decoder_layers
    name = find_parts(model.model).decoder_layers.name.rpartition(".")[0]
    norm = copy.deepcopy(model.model.get_submodule(name).norm)

    def on_normed(layer: nn.Module, see: Callable[[torch.Tensor], None]) -> Any:
        return on_output(layer, (lambda state: see(norm(state))) if layer is last else see)

    monkeypatch.setattr(measure, "on_output", on_normed)
    assert "norm" in doubted(model)


def test_a_shifted_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    groups_at = MeasuredBatch.groups_at

    def shifted(batch: MeasuredBatch, state: torch.Tensor) -> torch.Tensor:
        groups = groups_at(batch, state)
        moved = groups.roll(1, dims=-1)
        return torch.where(groups == PADDING, PADDING, moved)

    monkeypatch.setattr(MeasuredBatch, "groups_at", shifted)
    assert {TOKENS, "norm", *SAMPLE_METRICS, *OF_PAIRS} <= doubted(measured())


def test_a_wrong_image_token_id() -> None:
    inputs = tiny_inputs(model_of("llava"))
    ids = inputs["input_ids"]
    parts = find_parts(model_of("llava"))
    other = int(ids[~torch.isin(ids, torch.tensor(parts.image_token_ids))][-1])
    with pytest.raises(NormprobeError, match="that are taken for text"):
        doubted(measured(image_token_ids=(other,)))


def test_a_group_without_numbers_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    real = measure.rows

    def without_visual(*arguments: Any) -> Any:
        rows = real(*arguments)
        return rows[rows["group"] != VISUAL]

    monkeypatch.setattr(recomputed, "rows", without_visual)
    assert set(TOKEN_METRICS) <= doubted(measured())


def test_pairs_without_numbers_are_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    real = measure.rows

    def without_pairs(*arguments: Any) -> Any:
        rows = real(*arguments)
        return rows[rows["group"] != PAIR]

    monkeypatch.setattr(recomputed, "rows", without_pairs)
    assert doubted(measured()) >= OF_PAIRS


def test_swapped_modalities_of_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    real = measure.turn_cosines

    def swapped(*arguments: Any) -> torch.Tensor:
        return real(*arguments)[..., [1, 0, 2]]

    monkeypatch.setattr(measure, "turn_cosines", swapped)
    assert doubted(measured()) == {"visual_turn_to_text", "text_turn_to_visual"}


# --- cosines over pairs of a few tokens in the plane, by hand ------------------------------------

ROOT = np.sqrt(0.5)
RIGHT, UP, DIAGONAL = [2.0, 0.0], [0.0, 3.0], [5.0, 5.0]
NONE, LOST = [0.0, 0.0], [np.inf, 1.0]


def tokens(*rows: list[float]) -> np.ndarray:
    return np.array(rows)


def test_cosine_within() -> None:
    assert recomputed.cosine_within(tokens(RIGHT, UP, DIAGONAL)) == pytest.approx(2 * ROOT / 3)
    assert recomputed.cosine_within(tokens(RIGHT, NONE, DIAGONAL, LOST)) == pytest.approx(ROOT)
    assert np.isnan(recomputed.cosine_within(tokens(RIGHT, NONE)))


def test_cosine_across() -> None:
    visual, text = tokens(RIGHT, NONE, UP, LOST), tokens(DIAGONAL, RIGHT)
    assert recomputed.cosine_across(visual, text) == pytest.approx((2 * ROOT + 1) / 4)
    assert np.isnan(recomputed.cosine_across(tokens(NONE), text))


def test_centered_bundles_are_opposite() -> None:
    found = recomputed.centered_cosine_across(tokens(RIGHT, RIGHT), tokens(UP, NONE))
    assert found == pytest.approx(-1.0)


def test_mean_direction() -> None:
    mean = recomputed.mean_direction(tokens(RIGHT, [0.0, 2.0], LOST))
    np.testing.assert_allclose(mean, [ROOT, ROOT])


def test_cosines_of_turns() -> None:
    x = tokens(RIGHT, NONE, RIGHT), tokens(UP)
    h = tokens([4.0, 7.0], UP, [9.0, 0.0]), tokens([-3.0, 1.0])
    # Visual: the first turns up, the second has no x, the third does not turn. Text turns left.
    assert recomputed.cosines_of_turns(x, h) == pytest.approx([0.5, -1.0, 0.0])
