"""What a model is given besides what its processor returned."""

import copy
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.tiny_models import tiny_model
from transformers import BatchFeature

from normprobe.inputs.on_device import inputs_for


def batch() -> BatchFeature:
    return BatchFeature(
        {"input_ids": torch.ones(3, 2, dtype=torch.long), "pixel_values": torch.ones(3, 1)}
    )


def test_floats_take_the_dtype_of_the_model_and_ids_do_not() -> None:
    inputs = inputs_for(tiny_model("llava").bfloat16(), batch())
    assert inputs["pixel_values"].dtype == torch.bfloat16
    assert inputs["input_ids"].dtype == torch.long
    assert "decoder_input_ids" not in inputs


@pytest.mark.parametrize(
    ("config", "generation", "start"),
    [
        ({"decoder_start_token_id": 5}, {}, 5),
        ({}, {"decoder_start_token_id": 6}, 6),
        ({"bos_token_id": 7}, {}, 7),
    ],
)
def test_a_text_decoder_begins_with_its_start_token(
    config: dict[str, int], generation: dict[str, int], start: int
) -> None:
    model = encoder_decoder(config, generation)
    assert inputs_for(model, batch())["decoder_input_ids"].tolist() == [[start]] * 3
    given = batch()
    given["decoder_input_ids"] = torch.zeros(3, 4, dtype=torch.long)
    assert inputs_for(model, given)["decoder_input_ids"].shape == (3, 4)


def nested_batch() -> BatchFeature:
    """As MiniCPM-V takes it: tensors in lists in a dict."""
    data = {
        "pixel_values": [[torch.ones(2), torch.ones(3)], []],
        "ids": torch.ones(2, dtype=torch.long),
        "sizes": [(4, 3)],
    }
    return BatchFeature({"data": data, "attention_mask": torch.ones(2), "image_bound": None})


def test_tensors_in_dicts_and_lists_are_moved_too() -> None:
    moved = inputs_for(tiny_model("llava").bfloat16(), nested_batch())
    assert moved["data"]["pixel_values"][0][1].dtype == torch.bfloat16
    assert moved["attention_mask"].dtype == torch.bfloat16
    assert moved["data"]["ids"].dtype == torch.long
    assert moved["data"]["sizes"] == [(4, 3)]
    assert moved["image_bound"] is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [batch, nested_batch])
def test_a_batch_that_is_given_twice_is_unchanged(
    make: Callable[[], BatchFeature], dtype: torch.dtype
) -> None:
    model, given = tiny_model("llava").to(dtype), make()
    held = dict(given)
    first = inputs_for(model, given)
    expected = copy.deepcopy(first)
    for tensor in tensors_of(first):  # as a model may do that writes into its inputs
        tensor.zero_()
    second = inputs_for(model, given)
    assert all(given[name] is value for name, value in held.items())
    assert set(given) == set(held)
    for kept, made in zip(tensors_of(given), tensors_of(make()), strict=True):
        assert kept.dtype == made.dtype
        assert torch.equal(kept, made)
    for again, before in zip(tensors_of(second), tensors_of(expected), strict=True):
        assert again.dtype == before.dtype
        assert torch.equal(again, before)


def test_a_start_token_is_not_written_into_the_given_batch() -> None:
    model, given = encoder_decoder({"decoder_start_token_id": 5}, {}), batch()
    inputs_for(model, given)
    assert "decoder_input_ids" not in given


def tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors_of(item)]
    return []


def encoder_decoder(config: dict[str, int], generation: dict[str, int]) -> SimpleNamespace:
    """As much of a model as is asked for."""
    text_config = SimpleNamespace()
    return SimpleNamespace(
        parameters=lambda: iter([torch.zeros(1)]),
        dtype=torch.float32,
        config=SimpleNamespace(
            is_encoder_decoder=True, get_text_config=lambda decoder: text_config, **config
        ),
        generation_config=SimpleNamespace(**generation),
    )
