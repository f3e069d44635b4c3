"""Which inputs of a model hold pixels, and the same inputs with other pixels."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

#: pixel_values and its variants, flattened_patches (Pix2Struct), image_patches (Fuyu), images
#: (Molmo, DeepSeek-VL2), input_image_embeds (Phi-4-multimodal: pixels, whatever the name).
_NAMES = re.compile(r"pixel|patches|^images$|image_embeds$")


def pixel_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that hold floating-point image tensors, alone or inside lists and dicts."""
    return {name: value for name, value in inputs.items() if _holds_pixels(name, value)}


def with_other_pixels(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same inputs with noise added to every pixel; the same noise each time.

    Whole numbers stay: an all-zero tile means no tile, as one of -1 does for Molmo, and flattened
    patches start with their row and column.
    """
    pixels = pixel_inputs(inputs)
    return {**inputs, **{name: _perturbed(name, value) for name, value in pixels.items()}}


def _holds_pixels(name: str, value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point() and _NAMES.search(name) is not None
    if isinstance(value, Mapping):
        return any(_holds_pixels(inner, item) for inner, item in value.items())
    return isinstance(value, list | tuple) and any(_holds_pixels(name, item) for item in value)


def _perturbed(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {inner: _perturbed(inner, item) for inner, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_perturbed(name, item) for item in value)
    if not _holds_pixels(name, value):
        return value
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(value.shape, generator=generator).to(value)
    return torch.where(value == value.round(), value, value + noise)
