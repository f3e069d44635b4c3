"""Inputs of Phi-3-vision and Phi-3.5-vision: the processor takes one prompt with all its images.

Its published examples write ``<|image_1|>`` and a line break before the question and apply the chat
template of the tokenizer. In ``input_ids`` stand the negative number of the image, once for each
of its rows. Every line of visual tokens ends in a learned separator.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

from normprobe.data.sample import Sample
from normprobe.inputs.chat import render_chat
from normprobe.inputs.families.layouts import masks, of_image, with_placeholder

parts = {
    "vision_encoder": "model.vision_embed_tokens.img_processor",
    "projector": "model.vision_embed_tokens.img_projection",
    "text_embedding": "model.embed_tokens",
    "decoder_layers": "model.layers",
    "positions": "perturbation",  # `visual_mask` marks them
}


def build(
    model: Any, processor: Any, samples: Sequence[Sample], system: str | None
) -> dict[str, Any]:
    """One batch, padded on the right; crops are padded by the processor, all to one number."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    placed = with_placeholder(samples, "<|image_{}|>\n")
    texts = render_chat(processor.tokenizer, placed, system)
    made = [
        processor(text, images=list(sample.images) or None, return_tensors="pt")
        for text, sample in zip(texts, samples, strict=True)
    ]
    prompts = [one["input_ids"][0] for one in made]
    batch = {
        "input_ids": pad_sequence(prompts, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(ids) for ids in prompts], batch_first=True),
    }
    seen = [one for one in made if "pixel_values" in one]
    if not seen:
        return batch
    pixels = torch.cat([one["pixel_values"] for one in seen])
    sizes = torch.cat([torch.as_tensor(one["image_sizes"]) for one in seen])
    order = model.config.embd_layer.get("hd_transform_order", "glb_sub")
    side = isqrt(processor.num_img_tokens)  # of a crop, in tokens
    crops = (sizes // pixels.shape[-1]).tolist()
    images = [of_image(high * side, wide * side, side, order) for high, wide in crops]
    return {
        **batch,
        "pixel_values": pixels,
        "image_sizes": sizes,
        **masks(batch["input_ids"] < 0, images),
    }
