"""Learned separators between the visual tokens of an image, as the Phi models lay them out."""

from collections.abc import Sequence
from typing import Any

from normprobe.schema import STRUCTURAL_MASK, VISUAL_MASK


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
