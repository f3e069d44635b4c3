"""Layers that are wrong by themselves are told from those that read what is wrong."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.tiny_inputs import SPECIAL_IDS, tiny_samples
from support.tiny_models import tiny_model
from torch import nn
from transformers.activations import ACT2FN

from normprobe import find_parts
from normprobe.extensions.check.layers_alone import layers_alone
from normprobe.extensions.check.mistakes import own_states
from normprobe.inputs.on_device import inputs_for
from normprobe.model.measured_model import MeasuredModel

ATTENDS = "but not of the first token, which attends to itself alone: look at rotary positions"
REST = "of the first token, too: look at norms and their eps"


def decoder(model: nn.Module) -> Any:
    return find_parts(model).decoder_layers.module


def theta(model: Any) -> None:
    model.model.language_model.rotary_emb.inv_freq.pow_(1.2)


def eps(model: Any) -> None:
    for layer in decoder(model):
        layer.input_layernorm.variance_epsilon = 1e-1


def softer(model: Any) -> None:
    for layer in decoder(model):
        layer.self_attn.scaling *= 0.5


def activation(model: Any) -> None:
    decoder(model)[1].mlp.act_fn = ACT2FN["gelu"]


def queries(model: Any) -> None:
    decoder(model)[0].self_attn.q_proj.weight.data.mul_(1.5)


FAULTS: dict[str, tuple[str, Callable[[Any], None], str]] = {
    "rope theta": ("llava", theta, f"each of 3 layers returns something else: one cause in all "
                   f"of them, {ATTENDS}"),
    "eps": ("llava", eps, f"each of 3 layers returns something else: one cause in all of them, "
            f"{REST}"),
    "scale of attention": ("internvl", softer, ATTENDS),
    "one activation": ("llava", activation, f"layer 2 returns something else, {REST}"),
    "one query": ("llava", queries, f"layer 1 returns something else, {ATTENDS}"),
    "beside deepstack": ("qwen3_vl", activation, f"layer 2 returns something else, {REST}"),
}  # fmt: skip


def measured(model: nn.Module) -> MeasuredModel:
    return MeasuredModel(model, find_parts(model), SPECIAL_IDS)


@pytest.mark.parametrize("name", FAULTS)
def test_layers_that_are_wrong_by_themselves_are_named(name: str) -> None:
    model_type, plant, expected = FAULTS[name]
    right, port = measured(tiny_model(model_type)), measured(tiny_model(model_type))
    inputs = inputs_for(right.model, tiny_samples(right.model, 1)[0])
    assert layers_alone(right, inputs, own_states(port, inputs).states, 1e-4) == ""
    with torch.no_grad():
        plant(port.model)
    saved = own_states(port, inputs).states
    assert expected in layers_alone(right, inputs, saved, 1e-4)
    from_layer_1 = {number: state for number, state in saved.items() if number}
    if "deepstack" not in name:  # the decoder input is the model's own where none was saved
        assert expected in layers_alone(right, inputs, from_layer_1, 1e-4)
