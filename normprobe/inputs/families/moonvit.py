"""Inputs of MoonViT: its image processor and its encoder give the grid sizes two names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normprobe.data.sample import Sample
from normprobe.inputs.standard import required_images

if TYPE_CHECKING:
    from transformers import BatchFeature

parts = {"vision_encoder": ""}


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
