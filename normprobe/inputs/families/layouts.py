"""Image placeholders and separators, which several families write in the same way."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.schema import STRUCTURAL_MASK, VISUAL_MASK


def with_placeholder(samples: Sequence[Sample], placeholder: str) -> list[Sample]:
    """The samples as text alone, with an image placeholder where each image stands."""
    mark = placeholder.rstrip()
    separator = placeholder.removeprefix(mark)
    refuse_placeholder(samples, mark.format(1))
    return [
        replace(sample, prompt=sample.text_with(mark.format, separator), images=())
        for sample in samples
    ]


def refuse_placeholder(samples: Sequence[Sample], mark: str) -> None:
    """Refuse prompts with a text that the model would take for an image."""
    for sample in samples:
        if any(mark in text for text in sample.texts):
            raise NormprobeError(
                f"{sample.id}: the prompt contains this model's image placeholder {mark!r}",
                "remove it from the prompt; normprobe places the image itself",
            )


def of_image(rows: int, columns: int, thumbnail: int, order: str) -> list[bool]:
    """Which rows of an image at the decoder input are separators.

    One follows each line of tokens, and one stands between the image and its thumbnail.
    """
    image = ([False] * columns + [True]) * rows
    small = ([False] * thumbnail + [True]) * thumbnail
    return [*image, True, *small] if order == "sub_glb" else [*small, True, *image]


def masks(visual: Any, images: Sequence[Sequence[bool]]) -> dict[str, Any]:
    """The two masks of an inputs file.

    Args:
        visual: ``[batch, seq]`` bool: the rows of all images.
        images: ``of_image`` of each, in the order of the batch.
    """
    import torch

    structural = torch.zeros_like(visual)
    structural[visual] = torch.tensor([row for image in images for row in image])
    return {VISUAL_MASK: visual, STRUCTURAL_MASK: structural}
