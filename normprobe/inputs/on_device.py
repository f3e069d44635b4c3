"""A batch of a processor where its model is, and which of its inputs hold pixels or sound."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BatchFeature

from normprobe.errors import NormprobeError
from normprobe.hooks import arguments_of, by_name
from normprobe.schema import AUDIO, VIDEO, VISUAL
from normprobe.tensors import arrays_as_tensors, like, to_device, with_tensors

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

#: Where no input has the name of an image, those that are none whatever the model; where one has,
#: the others may be pictures, too (Oryx: images and images_highres), and their shape tells.
_ALL_BUT_THESE = re.compile(
    r"^(?!.*(mask|position|labels|audio|speech|sound|video|input_features|input_values"
    r"|inputs_embeds|(^|_)text))"  # not what is called a context (VideoGPT+)
)

#: Numbers that no row is made of.
_OF_NO_ROW = re.compile(r"mask|position|labels|size|scale|weight|factor")

#: Whole numbers of up to so many values are a mask, or a tile that is none.
_FEW = 3

#: Of a picture: [..., 3, height, width].
_COLOURS = 3

#: Sound in whole numbers.
_CODES = re.compile(r"audio_input_ids$")


def pixel_inputs(inputs: Mapping[str, Any], group: str = VISUAL) -> dict[str, Any]:
    """The inputs that hold floating-point image tensors, alone or inside lists and dicts.

    Names tell them; where none does, images are all others that are not known to be something else.
    """
    names = _names_of(group, inputs)
    return {name: value for name, value in inputs.items() if _holds_pixels(name, value, names)}


def unchanged_numbers(inputs: Mapping[str, Any]) -> list[str]:
    """Floating-point inputs that are neither pixels nor sound by name and shape, and may be."""
    known = {name for group in _NAMES for name in pixel_inputs(inputs, group)}
    return [
        name
        for name, value in inputs.items()
        if isinstance(value, Tensor)
        and (value.is_floating_point() and value.dim() > 1)
        and name not in known
        and not _OF_NO_ROW.search(name)
    ]


def with_other_pixels(inputs: Mapping[str, Any], group: str = VISUAL) -> dict[str, Any]:
    """The same inputs with noise added to every pixel of a group; the same noise each time.

    Whole numbers stay, but in pictures of nothing else: an all-zero tile means no tile, as rows of
    -1 do for Molmo, and flattened patches start with their row and column. A tile of one other
    number is one of pixels, such as black ones that pad a picture.
    """
    names = _names_of(group, inputs)
    return {name: _changed(name, value, names, _with_noise) for name, value in inputs.items()}


def with_permuted_pixels(inputs: Mapping[str, Any], group: str = VISUAL) -> dict[str, Any]:
    """The same inputs with the values of all pixels of a group in another order, always the same.

    What stays is as in ``with_other_pixels``.
    """
    names = _names_of(group, inputs)
    return {name: _changed(name, value, names, _permuted) for name, value in inputs.items()}


def _names_of(group: str, inputs: Mapping[str, Any]) -> re.Pattern[str]:
    names = _NAMES[group]
    named = any(_holds_pixels(name, value, names) for name, value in inputs.items())
    return names if named or group != VISUAL else _ALL_BUT_THESE


def _holds_pixels(name: str, value: Any, names: re.Pattern[str]) -> bool:
    if isinstance(value, Tensor):
        numbers = value.is_floating_point() or _CODES.search(name) is not None
        if names is _NAMES[VISUAL] and has_colours(value):
            names = _ALL_BUT_THESE
        return numbers and value.dim() > 1 and value.numel() > 0 and bool(names.search(name))
    if isinstance(value, Mapping):
        return any(_holds_pixels(inner, item, names) for inner, item in value.items())
    return isinstance(value, list | tuple) and any(_holds_pixels(name, v, names) for v in value)


def has_colours(tensor: Tensor) -> bool:
    """Whether a tensor has the shape of a picture, ``[..., 3, height, width]``."""
    return tensor.dim() > 2 and tensor.shape[-3] == _COLOURS


def _changed(
    name: str, value: Any, names: re.Pattern[str], change: Callable[[Tensor, Tensor], Tensor]
) -> Any:
    """Pixels, changed by a function of them and of which of them stay."""
    if isinstance(value, Mapping):
        changed = {inner: _changed(inner, item, names, change) for inner, item in value.items()}
        return like(value, changed)
    if isinstance(value, list | tuple):
        return type(value)(_changed(name, item, names, change) for item in value)
    if not _holds_pixels(name, value, names):
        return value
    kept = value == value.round()
    if kept.all() and len(value.unique()) > _FEW:  # a picture in whole numbers, from 0 to 255
        kept = value == 0
    if has_colours(value):
        first = value[..., :1, :1, :1]
        kept &= (first == 0) | (value != first).flatten(-3).any(dim=-1)[..., None, None, None]
    if kept.all() and names is _NAMES[AUDIO] and value.is_floating_point():
        # Silence is a sound (EgoGPT).
        kept = torch.zeros_like(kept)
    return change(value, kept)


def _with_noise(pixels: Tensor, kept: Tensor) -> Tensor:
    noise = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0)).to(pixels)
    return torch.where(kept, pixels, pixels + noise)


def _permuted(pixels: Tensor, kept: Tensor) -> Tensor:
    moving = pixels[~kept]
    order = torch.randperm(len(moving), generator=torch.Generator().manual_seed(0))
    permuted = pixels.clone()
    permuted[~kept] = moving[order.to(moving.device)]
    return permuted


#: Marks a function that takes a batch in the types in which it comes, and a model run by it.
AS_GIVEN = "takes_as_given"


def named_inputs(model: nn.Module, inputs: Any) -> dict[str, Any]:
    """One batch as a user has it, by the names of the model's forward; arrays become tensors.

    Args:
        model: whose forward takes it.
        inputs: a mapping; a tuple, in the order of the forward; or a function that calls the model
            it is given, such as ``lambda m: m(x, image=y)``: what it passes is taken.

    Raises:
        NormprobeError: it is none of these, or the function does not call the model.
    """
    if isinstance(inputs, Mapping):
        named = dict(inputs)
    elif isinstance(inputs, tuple):
        named = by_name(model, inputs, {})
    elif callable(inputs):
        named = arguments_of(model, inputs)
    else:
        raise NormprobeError(
            f"the inputs are a {type(inputs).__name__}; expected a dict of tensors by the names "
            f"that {type(model).__name__}.forward takes, a tuple or a function of the model",
            "pass what the model's processor returns: dict(...) makes one of its kind",
        )
    dtype = dtype_of(model)

    def fitting(tensor: Tensor) -> Tensor:  # NumPy computes in float64
        return tensor.to(dtype) if tensor.dtype is torch.float64 else tensor

    return {name: arrays_as_tensors(value, fitting) for name, value in named.items()}


def transformers_config(model: Any) -> Any:
    """The config of a model of transformers; None where it has none, or one of its own kind."""
    config = getattr(model, "config", None)
    return config if hasattr(config, "get_text_config") else None


def dtype_of(model: nn.Module) -> torch.dtype | None:
    """The float type that a model computes in; None where its weights are of several."""
    named = getattr(model, "dtype", None)
    if isinstance(named, torch.dtype):
        return named
    found = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
    return found.pop() if len(found) == 1 else None


def inputs_for(model: Any, batch: Mapping[str, Any]) -> BatchFeature:
    """Copy a batch to a model's device and float dtype, with a start token for a text decoder."""
    return BatchFeature(moved_to(model, completed(model, batch)))


def completed(model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a batch where it is, with all that the model wants.

    Returns:
        Copies of all tensors, floats in the model's dtype, but those that a script passes. For an
        encoder-decoder it has ``decoder_input_ids``: the start token alone, [batch, 1], where the
        processor gave none.
    """
    config = transformers_config(model)
    dtype = None if getattr(type(model), AS_GIVEN, False) else dtype_of(model)

    def copied(tensor: Tensor) -> Tensor:
        return tensor.to(dtype if tensor.is_floating_point() else None, copy=True)

    inputs: dict[str, Any] = with_tensors(dict(batch), copied)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" not in inputs:
        first = next(iter(inputs.values()))
        device = getattr(first, "device", None)
        inputs["decoder_input_ids"] = torch.full(
            (len(first), 1), _start_token_id(model), device=device
        )
    return inputs


def moved_to(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same inputs where a model is, whether they are there already or not.

    The host does not wait for the device.
    """
    # Weights that were not read, or are offloaded, are on meta; accelerate moves inputs on from
    # the first device.
    loaded = (weight.device for weight in model.parameters() if not weight.is_meta)
    device = next(loaded, torch.device("cpu"))
    moved: dict[str, Any] = with_tensors(dict(inputs), lambda tensor: to_device(tensor, device))
    return moved


def _start_token_id(model: Any) -> int:
    text_config = model.config.get_text_config(decoder=True)
    ids: list[int | None] = [
        getattr(holder, name, None)
        for name in ("decoder_start_token_id", "bos_token_id")
        for holder in (model.config, getattr(model, "generation_config", None), text_config)
    ]
    return next(token_id for token_id in ids if token_id is not None)
