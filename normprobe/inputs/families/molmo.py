"""Inputs of Molmo: its processor takes one sample, writes the roles and adds no batch axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.inputs.chat import NO_SYSTEM

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import BatchFeature

parts = {
    # The encoder returns the states of several layers, no single output: that stage is empty.
    "vision_encoder": "model.vision_backbone.image_vit.transformer.resblocks",
    "projector": "model.vision_backbone.image_projector",
    "text_embedding": "model.transformer.wte",
    "decoder_layers": "model.transformer.blocks",
    "class_rows": 0,  # removed before the projector
    "fusion": "added",
    "positions": "perturbation",  # `image_input_idx` marks them
}


def build(
    model: Any, processor: Any, samples: Sequence[Sample], system: str | None
) -> BatchFeature:
    """One batch, padded on the right.

    Raises:
        NormprobeError: a system prompt was asked for.
        ValueError: only some of the samples have an image.
    """
    if system not in (None, NO_SYSTEM):
        raise NormprobeError(
            f"--system: {type(processor).__name__} writes the roles itself and has no system role.",
            "Leave --system out.",
        )
    processed = []
    for sample in samples:
        images = None if sample.image is None else [sample.image]
        inputs = dict(processor.process(images=images, text=sample.prompt))
        inputs["attention_mask"] = inputs["input_ids"].new_ones(len(inputs["input_ids"]))
        processed.append(inputs)
    # The model passes over crops of -1 and over features whose index is negative.
    fill = {"attention_mask": 0, "images": -1, "image_masks": -1, "image_input_idx": -100}
    return stacked(processed, fill)


def stacked(samples: Sequence[Mapping[str, Tensor]], fill: Mapping[str, float]) -> BatchFeature:
    """Join samples without a batch axis, every axis padded at its end.

    Args:
        samples: one mapping each, all with the same names.
        fill: what to pad with, by name; others are padded with zeros.

    Returns:
        ``[batch, ...]`` tensors, each as large as the largest sample.

    Raises:
        ValueError: the samples hold different inputs.
    """
    from transformers import BatchFeature

    if any(sample.keys() != samples[0].keys() for sample in samples):
        raise ValueError("samples with and without an image do not fit into one batch")
    return BatchFeature(
        {
            name: _stack([sample[name] for sample in samples], fill.get(name, 0))
            for name in samples[0]
        }
    )


def _stack(tensors: Sequence[Tensor], fill: float) -> Tensor:
    shape = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
    batch = tensors[0].new_full((len(tensors), *shape), fill)
    for sample, tensor in zip(batch, tensors, strict=True):
        sample[tuple(slice(size) for size in tensor.shape)] = tensor
    return batch
