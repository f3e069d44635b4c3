"""From what a processor returned to what a model takes."""

from typing import Any

import torch
from transformers import BatchFeature


def inputs_for(model: Any, batch: BatchFeature) -> BatchFeature:
    """Move a batch to a model's device and float dtype, and let a text decoder begin.

    Args:
        model: a transformers model.
        batch: what its processor returned.

    Returns:
        The batch; for an encoder-decoder with ``decoder_input_ids``, the start token alone where
        the processor gave none.
    """
    # What was left out, or is offloaded, is on meta: accelerate moves inputs on from the first.
    loaded = (weight.device for weight in model.parameters() if not weight.is_meta)
    device = next(loaded, torch.device("cpu"))
    inputs = batch.to(device, model.dtype)
    if getattr(model.config, "is_encoder_decoder", False) and "decoder_input_ids" not in inputs:
        text_config = model.config.get_text_config(decoder=True)
        ids = [
            getattr(holder, name, None)
            for name in ("decoder_start_token_id", "bos_token_id")
            for holder in (model.config, getattr(model, "generation_config", None), text_config)
        ]
        start = next(token_id for token_id in ids if token_id is not None)
        samples = len(next(iter(inputs.values())))
        inputs["decoder_input_ids"] = torch.full((samples, 1), start, device=device)
    return inputs
