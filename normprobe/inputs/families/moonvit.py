"""MoonViT alone: its image processor and its encoder give the grid sizes two names.

The patches of all images of a batch are packed into one sequence, and its eager attention lets
images see each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normprobe.data.sample import Sample
from normprobe.inputs.standard import required_images

if TYPE_CHECKING:
    from transformers import BatchFeature

parts = {"vision_encoder": ""}


def prepare(model: Any, processor: Any) -> list[str]:
    """Keep the images of a batch apart."""
    del processor
    return keep_images_apart(model)


def keep_images_apart(encoder: Any) -> list[str]:
    """Take sdpa in place of eager attention, which is the same for one image.

    The published eager attention adds 1 to scores within an image and leaves the others as they
    are, where sdpa and flash attention mask them.
    """
    blocks = getattr(getattr(encoder, "encoder", None), "blocks", ())
    eager = [block for block in blocks if getattr(block, "attn_implementation", None) == "eager"]
    for block in eager:
        block.attn_implementation = "sdpa"
    return ["sdpa for eager attention in MoonViT, which would mix images"] if eager else []


def build(
    model: Any, processor: Any, samples: Sequence[Sample], system: str | None
) -> BatchFeature:
    """Images alone, as flat patches."""
    from transformers import BatchFeature

    del model, system
    inputs = processor(images=required_images(samples), return_tensors="pt")
    return BatchFeature(
        {"pixel_values": inputs["pixel_values"], "grid_hws": inputs["image_grid_hws"]}
    )
