"""Inputs of Molmo-7B-D, as its README makes them: ``processor.process``, one sample a call.

It writes the roles itself (the chat template of the tokenizer is not used), puts the image before
the prompt, and adds no batch axis. Its resizing needs tensorflow. It fails without an image, and
gives the features of a second image the positions of the first.

``image_input_idx`` says where each image feature goes: there it is added to the embedding of a
placeholder. The marks around images and lines are words of a second embedding table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normprobe.data.rows import RefusedSample
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.inputs.chat import NO_SYSTEM
from normprobe.inputs.inputs_file import InputsFile

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import BatchFeature


def _build(
    model: Any, processor: Any, samples: Sequence[Sample], system: str | None
) -> BatchFeature:
    """One batch, padded on the right."""
    if system not in (None, NO_SYSTEM):
        raise NormprobeError(
            f"--system: {type(processor).__name__} writes the roles itself and has no system role",
            "leave --system out",
        )
    processed = []
    for sample in samples:
        inputs = _processed(processor, sample)
        inputs["attention_mask"] = inputs["input_ids"].new_ones(len(inputs["input_ids"]))
        processed.append(inputs)
    # The model passes over crops of -1 and over features whose index is negative.
    fill = {"attention_mask": 0, "images": -1, "image_masks": -1, "image_input_idx": -100}
    return stacked(processed, fill)


def _processed(processor: Any, sample: Sample) -> dict[str, Tensor]:
    """One sample, without a batch axis."""
    import torch

    text = sample.pieces[-1]
    if len(sample.pieces) > 2 or not isinstance(text, str):
        raise RefusedSample(
            f"{sample.id}: {len(sample.images)} images in {len(sample.pieces)} pieces; this model "
            "reads one image, and then the prompt",
            "leave the sample out of the data",
        )
    if sample.images:
        return dict(processor.process(images=list(sample.images), text=text))
    # As `process` would go on.
    ids = processor.get_tokens_input(text, message_format="role", always_start_with_space=True)
    tokenizer = processor.tokenizer
    return {"input_ids": torch.tensor([tokenizer.bos_token_id or tokenizer.eos_token_id, *ids])}


def stacked(samples: Sequence[Mapping[str, Tensor]], fill: Mapping[str, float]) -> BatchFeature:
    """Join samples without a batch axis, every axis padded at its end.

    Returns:
        ``[batch, ...]`` tensors, each as large as the largest sample.
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


MOLMO = InputsFile(
    build=_build,
    parts={
        # The encoder returns the states of several layers, no single output: that stage is empty.
        "vision_encoder": "model.vision_backbone.image_vit.transformer.resblocks",
        "projector": "model.vision_backbone.image_projector",
        "text_embedding": "model.transformer.wte",
        "decoder_layers": "model.transformer.blocks",
        "class_rows": 0,  # removed before the projector
        "fusion": "added",
        "positions": "perturbation",  # `image_input_idx` marks them
    },
)
