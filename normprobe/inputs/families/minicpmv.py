"""Inputs of MiniCPM-V 2.6, as its method ``chat`` makes them.

Its processor has no chat template: that of its tokenizer is rendered with a placeholder a line for
each image, and the processor writes the slices of the image there. The model takes everything but
the attention mask as one dict.

- ``image_bound`` marks the positions of an image, no id does: ``<unk>`` may stand elsewhere.
- The marks around slices are words of the vocabulary; no row is structural.
- The processor takes id 0 for padding, which is ``!`` in this vocabulary: an ``!`` in a prompt is
  masked, so it is in no group, and positions do not count it. Generation does the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from normprobe.data.sample import Sample
from normprobe.inputs.chat import render_chat
from normprobe.inputs.families.layouts import refuse_placeholder

if TYPE_CHECKING:
    from transformers import BatchFeature

parts = {
    "vision_encoder": "vpm",
    "projector": "resampler",
    "text_embedding": "llm.model.embed_tokens",
    "decoder_layers": "llm.model.layers",
    "positions": "perturbation",  # `image_bound` marks them
}

_PLACEHOLDER = "(<image>./</image>)"
#: The processor would take the positions between two of these for a slice.
_MARKS = ("<image>", "</image>", "<slice>", "</slice>")


def build(
    model: Any, processor: Any, samples: Sequence[Sample], system: str | None
) -> BatchFeature:
    """``data`` and ``attention_mask``, padded on the left; one list of images a prompt."""
    from transformers import BatchFeature

    for mark in _MARKS:
        refuse_placeholder(samples, mark)
    texts = render_chat(processor.tokenizer, [_as_text(sample) for sample in samples], system)
    images = [list(sample.images) for sample in samples]
    made = processor(texts, images, return_tensors="pt")
    mask = made["attention_mask"].long()
    taken = ("input_ids", "pixel_values", "tgt_sizes", "image_bound")
    data = {name: made[name] for name in taken}
    data["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    return BatchFeature({"data": data, "attention_mask": mask})


def _as_text(sample: Sample) -> Sample:
    """Texts and placeholders, one a line."""
    lines = [piece if isinstance(piece, str) else _PLACEHOLDER for piece in sample.pieces]
    return replace(sample, prompt="\n".join(lines), images=())
