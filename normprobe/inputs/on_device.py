"""A batch of a processor, copied to where its model is."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import BatchFeature

from normprobe.nested import with_tensors
from normprobe.transfers import to_device


def inputs_for(model: Any, batch: Mapping[str, Any]) -> BatchFeature:
    """Copy a batch to a model's device and float dtype, with a start token for a text decoder."""
    return BatchFeature(moved_to(model, completed(model, batch)))


def completed(model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a batch where it is, with all that the model wants.

    Returns:
        Copies of all tensors, floats in the model's dtype. For an encoder-decoder it has
        ``decoder_input_ids``: the start token alone, [batch, 1], where the processor gave none.
    """

    def copied(tensor: Tensor) -> Tensor:
        return tensor.to(model.dtype if tensor.is_floating_point() else None, copy=True)

    inputs: dict[str, Any] = with_tensors(dict(batch), copied)
    if getattr(model.config, "is_encoder_decoder", False) and "decoder_input_ids" not in inputs:
        first = next(iter(inputs.values()))
        device = getattr(first, "device", None)
        inputs["decoder_input_ids"] = torch.full(
            (len(first), 1), _start_token_id(model), device=device
        )
    return inputs


def moved_to(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same inputs where a model is, whether they are there already or not.

    The host does not wait for the device.
    """
    # Weights that were not read, or are offloaded, are on meta; accelerate moves inputs on from
    # the first device.
    loaded = (weight.device for weight in model.parameters() if not weight.is_meta)
    device = next(loaded, torch.device("cpu"))
    moved: dict[str, Any] = with_tensors(dict(inputs), lambda tensor: to_device(tensor, device))
    return moved


def _start_token_id(model: Any) -> int:
    text_config = model.config.get_text_config(decoder=True)
    ids: list[int | None] = [
        getattr(holder, name, None)
        for name in ("decoder_start_token_id", "bos_token_id")
        for holder in (model.config, getattr(model, "generation_config", None), text_config)
    ]
    return next(token_id for token_id in ids if token_id is not None)
