"""Inputs of DeepSeek-VL2, as its ``inference.py`` makes them: conversations, one call each.

The code is no part of a checkpoint but an installed package, ``deepseek_vl2``: importing it
registers the classes. It has no chat template. Its processor writes the roles, and takes a system
prompt as the first message; the argument ``system_prompt`` reaches no token.

One id stands for all rows of an image, and ``images_seq_mask`` marks them. At the end of each line
of patches a learned newline is among them, and a learned separator between the overview and the
tiles: these rows are structural. More than two images in a sample are not cut into tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.inputs.chat import NO_SYSTEM
from normprobe.inputs.families.layouts import with_placeholder

if TYPE_CHECKING:
    from transformers import BatchFeature

parts = {
    "vision_encoder": "vision",
    "projector": "projector",
    "text_embedding": "language.model.embed_tokens",
    "decoder_layers": "language.model.layers",
    "positions": "perturbation",  # `images_seq_mask` marks them
}


def setup() -> None:
    """Import the package, which registers its classes."""
    try:
        import deepseek_vl2.models  # type: ignore[import-not-found]  # noqa: F401
    except ModuleNotFoundError as error:
        # It names old versions of torch and transformers as its dependencies.
        raise NormprobeError(
            f"DeepSeek-VL2 runs with code of its own, and the package {error.name} is missing",
            "pip install --no-deps git+https://github.com/deepseek-ai/DeepSeek-VL2, and "
            "pip install attrdict einops timm torchvision xformers",
        ) from error


def load_processor(path: str) -> Any:
    """The package's: AutoProcessor finds a tokenizer alone."""
    from deepseek_vl2.models import DeepseekVLV2Processor

    return DeepseekVLV2Processor.from_pretrained(path)


def build(
    model: Any, processor: Any, samples: Sequence[Sample], system: str | None
) -> BatchFeature:
    """One batch, padded on the left by the processor's own ``batchify``."""
    from transformers import BatchFeature

    opening = [] if system in (None, NO_SYSTEM) else [{"role": "system", "content": system}]
    prepared = [
        processor(
            conversations=[
                *opening,
                {"role": "<|User|>", "content": placed.prompt},
                {"role": "<|Assistant|>", "content": ""},
            ],
            images=list(sample.images),
            force_batchify=False,
        )
        for sample, placed in zip(samples, with_placeholder(samples, "<image>\n"), strict=True)
    ]
    batch = processor.batchify(prepared)
    inputs = BatchFeature({name: batch[name] for name in ("input_ids", "attention_mask")})
    if any(sample.images for sample in samples):  # for text alone it makes up an empty tile
        inputs |= {name: batch[name] for name in ("images", "images_spatial_crop")}
        # Where it pads, the mask comes out as numbers, which the model does not take.
        inputs["images_seq_mask"] = batch["images_seq_mask"].bool()
    return inputs
