"""Which inputs of a model hold pixels or sound, and the same inputs with others.

Each is asked for by its token group: ``visual`` for images, ``video`` or ``audio``.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from normprobe.schema import AUDIO, VIDEO, VISUAL

#: Names of inputs. Images: pixel_values and its variants, flattened_patches (Pix2Struct),
#: image_patches (Fuyu), images (Molmo, DeepSeek-VL2), input_image_embeds (Phi-4-multimodal: pixels,
#: whatever the name). Sound: input_features, input_values, input_audio_embeds, audio_input_ids.
_NAMES = {
    VISUAL: re.compile(r"^(?!.*video)(.*pixel|.*patches|images$|.*image_embeds$)"),
    VIDEO: re.compile(r"^(?!.*(mask|position)).*video"),
    AUDIO: re.compile(
        r"^(?!.*(mask|position|video)).*(audio|speech|sound|input_features|input_values)"
    ),
}

#: Where no input has the name of an image, those that are none whatever the model.
_ALL_BUT_THESE = re.compile(
    r"^(?!.*(mask|position|labels|audio|speech|sound|video|input_features|input_values"
    r"|inputs_embeds|text))"
)

#: Sound in whole numbers.
_CODES = re.compile(r"audio_input_ids$")


def pixel_inputs(inputs: Mapping[str, Any], group: str = VISUAL) -> dict[str, Any]:
    """The inputs that hold floating-point image tensors, alone or inside lists and dicts.

    Names tell them; where none does, images are all others that are not known to be something else.
    """
    names = _names_of(group, inputs)
    return {name: value for name, value in inputs.items() if _holds_pixels(name, value, names)}


def with_other_pixels(inputs: Mapping[str, Any], group: str = VISUAL) -> dict[str, Any]:
    """The same inputs with noise added to every pixel of a group; the same noise each time.

    Whole numbers stay: an all-zero tile means no tile, as one of -1 does for Molmo, and flattened
    patches start with their row and column.
    """
    names = _names_of(group, inputs)
    return {name: _perturbed(name, value, names) for name, value in inputs.items()}


def _names_of(group: str, inputs: Mapping[str, Any]) -> re.Pattern[str]:
    names = _NAMES[group]
    named = any(_holds_pixels(name, value, names) for name, value in inputs.items())
    return names if named or group != VISUAL else _ALL_BUT_THESE


def _holds_pixels(name: str, value: Any, names: re.Pattern[str]) -> bool:
    if isinstance(value, Tensor):
        numbers = value.is_floating_point() or _CODES.search(name) is not None
        return numbers and value.dim() > 1 and value.numel() > 0 and bool(names.search(name))
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
