"""Inputs of MiniCPM-V: the model takes everything but the attention mask as one dict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normprobe.data.sample import Sample
from normprobe.inputs.chat import render_chat
from normprobe.inputs.families.placeholders import with_placeholder

if TYPE_CHECKING:
    from transformers import BatchFeature

parts = {
    "vision_encoder": "vpm",
    "projector": "resampler",
    "text_embedding": "llm.model.embed_tokens",
    "decoder_layers": "llm.model.layers",
    "positions": "perturbation",  # `image_bound` marks them
}


def build(
    model: Any, processor: Any, samples: Sequence[Sample], system: str | None
) -> BatchFeature:
    """``data`` and ``attention_mask``, padded on the left; one list of images a prompt."""
    from transformers import BatchFeature

    placed = with_placeholder(samples, "(<image>./</image>)\n")
    images = [list(sample.images) for sample in samples]
    texts = render_chat(processor.tokenizer, placed, system)
    data = dict(processor(texts, images, return_tensors="pt"))
    mask = data.pop("attention_mask").long()
    # Padding stands on the left: positions count from the first token of the prompt.
    data["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    return BatchFeature({"data": data, "attention_mask": mask})
