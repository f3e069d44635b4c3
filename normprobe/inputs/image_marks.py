"""Inputs that mark the positions of an image, for models that do so by no token id."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from normprobe.nested import find_named
from normprobe.schema import VISUAL_MASK


def marked_positions(inputs: Mapping[str, Any], shape: torch.Size) -> Tensor | None:
    """The positions that an input marks as belonging to an image.

    Args:
        inputs: what the model takes; dicts inside it are looked into as well.
        shape: ``[batch, seq]`` of the prompts.

    Returns:
        bool ``[batch, seq]``; None where no input marks positions.
    """
    for name, positions in MARKS.items():
        marks = find_named(inputs, name)
        if marks is not None:
            return positions(marks, shape)
    return None


def _by_mask(mask: Tensor, shape: torch.Size) -> Tensor:
    return mask.bool().reshape(shape)


def _by_index(indices: Tensor, shape: torch.Size) -> Tensor:
    """``[batch, crops, features]`` positions in the sequence; negative: the feature is not used."""
    flat = indices.reshape(len(indices), -1)
    marked = torch.zeros(shape, dtype=torch.bool, device=flat.device)
    sample, feature = (flat >= 0).nonzero(as_tuple=True)
    marked[sample, flat[sample, feature]] = True
    return marked


def _by_ranges(bounds: list[Tensor], shape: torch.Size) -> Tensor:
    """One ``[images, 2]`` tensor a sample: where the positions of an image start and end."""
    marked = torch.zeros(shape, dtype=torch.bool, device=bounds[0].device)
    for positions, ranges in zip(marked, bounds, strict=True):
        for start, end in ranges.tolist():
            positions[start:end] = True
    return marked


#: By the name of the input: an inputs file, DeepSeek-VL2, Kosmos-2, Molmo, MiniCPM-V.
MARKS: dict[str, Callable[[Any, torch.Size], Tensor]] = {
    VISUAL_MASK: _by_mask,
    "images_seq_mask": _by_mask,
    "image_embeds_position_mask": _by_mask,
    "image_input_idx": _by_index,
    "image_bound": _by_ranges,
}
