"""Inputs of Phi-4-multimodal: images are numbered within each prompt.

The published examples write the roles by hand, without line breaks. The processor pads on the left
and says by ``input_mode`` whether there are images: only then do the decoder layers run with the
adapter for vision, so a prompt without an image goes through other weights. Every line of visual
tokens ends in a learned separator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normprobe.data.sample import Sample
from normprobe.inputs.chat import NO_SYSTEM
from normprobe.inputs.families.layouts import masks, of_image, with_placeholder

parts = {
    "vision_encoder": "model.embed_tokens_extend.image_embed.img_processor",
    "projector": "model.embed_tokens_extend.image_embed.img_projection",
    "text_embedding": "model.embed_tokens",
    "decoder_layers": "model.layers",
    "image_token_ids": (200010,),  # a constant of its code, in no config
    "audio_token_ids": (200011,),  # likewise
}


def build(
    model: Any, processor: Any, samples: Sequence[Sample], system: str | None
) -> dict[str, Any]:
    """One batch, without the empty inputs for what the prompts do not hold."""
    images = [image for sample in samples for image in sample.images]
    if images and not all(sample.images for sample in samples):
        raise ValueError("samples with and without an image run with different weights")
    opening = "" if system in (None, NO_SYSTEM) else f"<|system|>{system}<|end|>"
    texts = [
        f"{opening}<|user|>{sample.prompt}<|end|><|assistant|>"
        for sample in with_placeholder(samples, "<|image_{}|>")
    ]
    made = processor(text=texts, images=images or None, return_tensors="pt")
    batch = {name: value for name, value in made.items() if not _is_empty(value)}
    # Padding stands on the left: positions count from the first token of the prompt.
    batch["position_ids"] = (batch["attention_mask"].long().cumsum(-1) - 1).clamp(min=0)
    if images:
        order = model.config.embd_layer["image_embd_layer"].get("hd_transform_order", "glb_sub")
        crop = made["input_image_embeds"].shape[-1]
        grids = zip(made["image_sizes"].tolist(), made["image_attention_mask"], strict=True)
        rows = [
            of_image(*_grid(kept, high // crop, wide // crop), len(kept[0]) // 2, order)
            for (high, wide), kept in grids
        ]
        batch |= masks(batch["input_ids"] == parts["image_token_ids"][0], rows)
    return batch


def _is_empty(value: Any) -> bool:
    return value is None or getattr(value, "numel", lambda: len(value))() == 0


def _grid(kept: Any, high: int, wide: int) -> tuple[int, int]:
    """Rows and columns of visual tokens of an image, without those of padding.

    Args:
        kept: ``[1 + crops, patches, patches]``, the thumbnail first: 0 at padding. Two by two
            patches make a token.
        high: crops of the image from top to bottom.
        wide: from left to right.
    """
    tokens = kept[1 : 1 + high * wide, ::2, ::2]
    crops = tokens.reshape(high, wide, *tokens.shape[1:])
    return int(crops[:, 0, :, 0].sum()), int(crops[0, :, 0, :].sum())
