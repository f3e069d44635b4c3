"""Which inputs of a model hold pixels, and the same inputs with other pixels."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

#: pixel_values and its variants, flattened_patches (Pix2Struct), image_patches (Fuyu), images
#: (Molmo, DeepSeek-VL2), input_image_embeds (Phi-4-multimodal: pixels, whatever the name).
_NAMES = re.compile(r"pixel|patches|^images$|image_embeds$")

#: Where no input has such a name, those that are no image whatever the model.
_ALL_BUT_THESE = re.compile(
    r"^(?!.*(mask|position|labels|audio|speech|input_features|inputs_embeds|text))"
)


def pixel_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that hold floating-point image tensors, alone or inside lists and dicts.

    Names tell them; where none does, they are all others that are not known to be something else.
    """
    names = _names_of_pixels(inputs)
    return {name: value for name, value in inputs.items() if _holds_pixels(name, value, names)}


def with_other_pixels(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same inputs with noise added to every pixel; the same noise each time.

    Whole numbers stay: an all-zero tile means no tile, as one of -1 does for Molmo, and flattened
    patches start with their row and column.
    """
    names = _names_of_pixels(inputs)
    return {name: _perturbed(name, value, names) for name, value in inputs.items()}


def _names_of_pixels(inputs: Mapping[str, Any]) -> re.Pattern[str]:
    named = any(_holds_pixels(name, value, _NAMES) for name, value in inputs.items())
    return _NAMES if named else _ALL_BUT_THESE


def _holds_pixels(name: str, value: Any, names: re.Pattern[str]) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point() and value.dim() > 1 and names.search(name) is not None
    if isinstance(value, Mapping):
        return any(_holds_pixels(inner, item, names) for inner, item in value.items())
    return isinstance(value, list | tuple) and any(_holds_pixels(name, v, names) for v in value)


def _perturbed(name: str, value: Any, names: re.Pattern[str]) -> Any:
    if isinstance(value, Mapping):
        return {inner: _perturbed(inner, item, names) for inner, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_perturbed(name, item, names) for item in value)
    if not _holds_pixels(name, value, names):
        return value
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(value.shape, generator=generator).to(value)
    return torch.where(value == value.round(), value, value + noise)
