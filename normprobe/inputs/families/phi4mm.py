"""Inputs of Phi-4-multimodal: images are numbered within each prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normprobe.data.sample import Sample
from normprobe.inputs.chat import NO_SYSTEM
from normprobe.inputs.families.placeholders import with_placeholder

if TYPE_CHECKING:
    from transformers import BatchFeature

parts = {
    "vision_encoder": "model.embed_tokens_extend.image_embed.img_processor",
    "projector": "model.embed_tokens_extend.image_embed.img_projection",
    "text_embedding": "model.embed_tokens",
    "decoder_layers": "model.layers",
    "image_token_ids": (200010,),  # a constant of its code, in no config
}


def build(
    model: Any, processor: Any, samples: Sequence[Sample], system: str | None
) -> BatchFeature:
    """One batch; the roles are written here, as the published examples write them."""
    from transformers import BatchFeature

    opening = "" if system in (None, NO_SYSTEM) else f"<|system|>{system}<|end|>"
    texts = [
        f"{opening}<|user|>{sample.prompt}<|end|><|assistant|>"
        for sample in with_placeholder(samples, "<|image_{}|>")
    ]
    images = [image for sample in samples for image in sample.images]
    return BatchFeature(dict(processor(text=texts, images=images or None, return_tensors="pt")))
