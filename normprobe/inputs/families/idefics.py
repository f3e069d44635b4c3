"""Inputs of IDEFICS, the first: its processor takes the pieces of a prompt, images among texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normprobe.data.sample import Sample
from normprobe.inputs.chat import refuse_system
from normprobe.inputs.standard import batch_options

if TYPE_CHECKING:
    from transformers import BatchFeature


def build(
    model: Any, processor: Any, samples: Sequence[Sample], system: str | None
) -> BatchFeature:
    """One batch, padded on the right."""
    from transformers import BatchFeature

    refuse_system(processor, system)
    prompts = [sample.pieces for sample in samples]
    options = batch_options(processor.tokenizer, len(samples))
    return BatchFeature(dict(processor(text=prompts, **options)))
