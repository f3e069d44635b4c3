"""Each planted fault is found when a sample is recomputed without hooks."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from support.cases import model_of
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import VLM_TYPES
from torch import nn

from normprobe import NormprobeError, find_parts
from normprobe.hooks import on_output
from normprobe.measurements.layers import measure
from normprobe.measurements.layers.recomputed import STATES, TOKENS, differences, in_doubt
from normprobe.model.find.parts import Part
from normprobe.model.measured_model import MeasuredBatch, MeasuredModel
from normprobe.schema import PADDING, TOKEN_METRICS, VISUAL

FLOAT32 = torch.float32


def measured(model_type: str = "llava", **changed: Any) -> MeasuredModel:
    model = model_of(model_type)
    return MeasuredModel(model, replace(find_parts(model), **changed), SPECIAL_IDS)


def doubted(model: MeasuredModel) -> set[str]:
    return set(in_doubt(differences(model, tiny_inputs(model.model)), FLOAT32))


@pytest.mark.parametrize("model_type", VLM_TYPES)
def test_sound_numbers_are_confirmed(model_type: str) -> None:
    model = measured(model_type)
    found = differences(model, tiny_inputs(model.model))
    assert {*TOKEN_METRICS, TOKENS, STATES} == set(found)
    assert in_doubt(found, FLOAT32) == []


@pytest.mark.parametrize("padding", ["right", "left"])
def test_a_padded_batch_is_confirmed(padding: Literal["right", "left"]) -> None:
    model = measured("qwen2_5_vl")
    found = differences(model, tiny_inputs(model.model, 4, padding))
    assert in_doubt(found, FLOAT32) == []


def test_the_model_is_left_as_it_was() -> None:
    model = measured()
    differences(model, tiny_inputs(model.model))
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
    assert {"norm", "cosine", "angle"} <= doubted(model)


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
    assert {TOKENS, "norm"} <= doubted(measured())


def test_a_wrong_image_token_id() -> None:
    inputs = tiny_inputs(model_of("llava"))
    ids = inputs["input_ids"]
    parts = find_parts(model_of("llava"))
    other = int(ids[~torch.isin(ids, torch.tensor(parts.image_token_ids))][-1])
    assert {TOKENS, "norm"} <= doubted(measured(image_token_ids=(other,)))


def test_a_group_without_numbers_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    real = measure.rows
    from normprobe.measurements.layers import recomputed

    def without_visual(*arguments: Any) -> Any:
        rows = real(*arguments)
        return rows[rows["group"] != VISUAL]

    monkeypatch.setattr(recomputed, "rows", without_visual)
    assert set(TOKEN_METRICS) <= doubted(measured())
