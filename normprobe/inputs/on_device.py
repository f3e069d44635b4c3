"""A batch of a processor, copied to where its model is."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import BatchFeature

from normprobe.nested import with_tensors


def inputs_for(model: Any, batch: Mapping[str, Any]) -> BatchFeature:
    """Copy a batch to a model's device and float dtype, with a start token for a text decoder.

    Args:
        model: a transformers model.
        batch: what its processor returned; tensors may lie in dicts, lists and tuples. It stays as
            it is, also where the model writes into its inputs.

    Returns:
        A new batch with copies of all tensors. For an encoder-decoder it has ``decoder_input_ids``:
        the start token alone, [batch, 1], where the processor gave none.
    """
    # Weights that were not read, or are offloaded, are on meta; accelerate moves inputs on from
    # the first device.
    loaded = (weight.device for weight in model.parameters() if not weight.is_meta)
    device = next(loaded, torch.device("cpu"))

    def copied(tensor: Tensor) -> Tensor:
        dtype = model.dtype if tensor.is_floating_point() else None
        return tensor.to(device, dtype, copy=True)

    inputs = BatchFeature(with_tensors(batch, copied))
    if getattr(model.config, "is_encoder_decoder", False) and "decoder_input_ids" not in inputs:
        samples = len(next(iter(inputs.values())))
        start = torch.full((samples, 1), _start_token_id(model), device=device)
        inputs["decoder_input_ids"] = start
    return inputs


def _start_token_id(model: Any) -> int:
    text_config = model.config.get_text_config(decoder=True)
    ids: list[int | None] = [
        getattr(holder, name, None)
        for name in ("decoder_start_token_id", "bos_token_id")
        for holder in (model.config, getattr(model, "generation_config", None), text_config)
    ]
    return next(token_id for token_id in ids if token_id is not None)
