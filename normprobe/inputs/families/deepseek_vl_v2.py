"""Inputs of DeepSeek-VL2: conversations in its own format, one call each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normprobe.data.sample import Sample
from normprobe.inputs.chat import NO_SYSTEM
from normprobe.inputs.families.placeholders import with_placeholder

if TYPE_CHECKING:
    from transformers import BatchFeature

parts = {
    "vision_encoder": "vision",
    "projector": "projector",
    "text_embedding": "language.model.embed_tokens",
    "decoder_layers": "language.model.layers",
    "positions": "perturbation",  # `images_seq_mask` marks them
}


def build(
    model: Any, processor: Any, samples: Sequence[Sample], system: str | None
) -> BatchFeature:
    """One batch; the processor's own ``batchify`` pads it."""
    from transformers import BatchFeature

    asked = "" if system in (None, NO_SYSTEM) else system
    prepared = [
        processor(
            conversations=[
                {"role": "<|User|>", "content": placed.prompt},
                {"role": "<|Assistant|>", "content": ""},
            ],
            images=list(sample.images),
            force_batchify=False,
            system_prompt=asked,
        )
        for sample, placed in zip(samples, with_placeholder(samples, "<image>\n"), strict=True)
    ]
    batch = processor.batchify(prepared)
    names = ("input_ids", "attention_mask", "images", "images_seq_mask", "images_spatial_crop")
    return BatchFeature({name: batch[name] for name in names})
