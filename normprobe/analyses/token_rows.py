"""Which rows of a batch are visual, structural, special and text.

Placeholder ids say where visual rows are written. Some of those rows hold a learned newline or
separator instead of pixels: they are found by asking the model, not by knowing it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normprobe.data.batches import token_groups
from normprobe.data.image_rows import marked_rows
from normprobe.errors import NormprobeError
from normprobe.hooks import attached, observing, on_input, run_until
from normprobe.model.overrides import ADDED, CROSS_ATTENTION, DISCRETE, PREPENDED
from normprobe.model.parts import Parts
from normprobe.schema import PADDING, STRUCTURAL, TOKEN_GROUPS, VISUAL

#: pixel_values and its variants, flattened_patches (Pix2Struct), image_patches (Fuyu), images
#: (Molmo, DeepSeek-VL2), input_image_embeds (Phi-4-multimodal: pixels, whatever the name).
_PIXELS = re.compile(r"pixel|patches|^images$|image_embeds$")

_VISUAL, _STRUCTURAL = TOKEN_GROUPS.index(VISUAL), TOKEN_GROUPS.index(STRUCTURAL)


def groups_of(
    model: nn.Module,
    parts: Parts,
    inputs: Mapping[str, Any],
    special_token_ids: Iterable[int] | None,
) -> Tensor:
    """Token group codes of a batch, every placeholder row counted as visual.

    Where no token id tells visual rows, other pixels do: two runs to the decoder's door.

    Args:
        model: on the device of ``inputs``.
        parts: of ``find_parts(model)``.
        inputs: what a processor returned.
        special_token_ids: ids that count as special; None: no token does.

    Returns:
        ``[batch, seq]`` int8 codes of ``schema.TOKEN_GROUPS``, padding ``schema.PADDING``.

    Raises:
        NormprobeError: without ``input_ids``, or with an image but no placeholder for it.
    """
    ids, mask = text_ids(inputs, parts)
    if ids is None:
        raise NormprobeError(
            f"the inputs hold no input_ids; received {', '.join(inputs)}",
            "pass what the model's processor returns for text and images",
        )
    groups = token_groups(
        ids,
        mask if mask is not None and mask.shape == ids.shape else None,
        parts.image_token_ids,
        list(special_token_ids or ()),
    )
    if not pixel_tensors(inputs) or parts.fusion in (PREPENDED, CROSS_ATTENTION):
        return groups
    marked = marked_rows(inputs, groups.shape)
    if marked is not None:
        return torch.where(marked & (groups != PADDING), _VISUAL, groups)
    if not parts.image_token_ids:
        seen, other = _with_other_pixels(model, parts, inputs)
        groups = _fitted(groups.to(seen.device), seen, parts)
        unmoved = torch.where(groups == _VISUAL, _STRUCTURAL, groups)
        return torch.where((seen != other).any(-1) & (groups != PADDING), _VISUAL, unmoved)
    if not bool((groups == _VISUAL).any()):
        raise NormprobeError(
            f"the prompt holds no image token: expected one of the ids "
            f"{list(parts.image_token_ids)} in input_ids",
            "use the processor of this model, or check config.image_token_id",
        )
    return groups


def text_ids(inputs: Mapping[str, Any], parts: Parts) -> tuple[Tensor | None, Tensor | None]:
    """The ids that the measured stack reads and their mask, each None where there is none.

    The text decoder of an encoder-decoder that attends to the image reads ``decoder_input_ids``.
    MiniCPM-V takes its ids inside a dict, and the mask beside it.
    """
    if isinstance(inputs.get("data"), Mapping):
        return inputs["data"].get("input_ids"), inputs.get("attention_mask")
    if parts.fusion == CROSS_ATTENTION and "decoder_input_ids" in inputs:
        return inputs["decoder_input_ids"], inputs.get("decoder_attention_mask")
    return inputs.get("input_ids"), inputs.get("attention_mask")


def pixel_tensors(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that hold floating-point image tensors, alone or inside lists and dicts."""
    return {name: value for name, value in inputs.items() if _holds_pixels(name, value)}


def _holds_pixels(name: str, value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point() and _PIXELS.search(name) is not None
    if isinstance(value, Mapping):
        return any(_holds_pixels(inner, item) for inner, item in value.items())
    return isinstance(value, list | tuple) and any(_holds_pixels(name, item) for item in value)


def constant_rows(
    model: nn.Module, parts: Parts, inputs: Mapping[str, Any], groups: Tensor
) -> Tensor | None:
    """The distinct placeholder rows that other pixels leave as they are.

    Two runs up to the decoder's door, the second with noise for pixels. Costs the vision encoder
    twice, no decoder layer. Done once for a model: later batches recognise the rows by equality.

    Args:
        model: on the device of ``inputs``.
        parts: of ``find_parts``.
        inputs: what a processor returned.
        groups: of ``groups_of``.

    Returns:
        ``[rows, hidden]``, no rows for most models; None where the question makes no sense:
        without pixels, or where visual rows have no placeholders of their own.
    """
    # An image tokenizer may give the same tokens for other pixels: that makes no row structural.
    no_placeholders = parts.fusion in (DISCRETE, PREPENDED, CROSS_ATTENTION)
    if not pixel_tensors(inputs) or no_placeholders or not bool((groups == _VISUAL).any()):
        return None
    seen, other = _with_other_pixels(model, parts, inputs)
    placeholders = (groups == _VISUAL).to(seen.device)
    constant = placeholders & (seen == other).all(-1)
    rows: Tensor = torch.unique(seen[constant], dim=0)
    return rows


def _with_other_pixels(
    model: nn.Module, parts: Parts, inputs: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    """The decoder input, and that for other pixels."""
    other_pixels = {name: _perturbed(name, value) for name, value in pixel_tensors(inputs).items()}
    return (
        decoder_input_of(model, parts, inputs),
        decoder_input_of(model, parts, {**inputs, **other_pixels}),
    )


def _perturbed(name: str, value: Any) -> Any:
    """Other pixels of about the same size, wherever they are in ``value``; the rest as it is.

    Whole numbers stay: an all-zero tile means no tile, as one of -1 does for Molmo, and flattened
    patches start with their row and column.
    """
    if isinstance(value, Mapping):
        return {inner: _perturbed(inner, item) for inner, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_perturbed(name, item) for item in value)
    if not _holds_pixels(name, value):
        return value
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(value.shape, generator=generator).to(value)
    return torch.where(value == value.round(), value, value + noise)


def place_groups(
    groups: Tensor, decoder_input: Tensor, parts: Parts, constants: Tensor | None
) -> Tensor:
    """Fit the groups of a prompt to the rows that enter decoder layer 1.

    Args:
        groups: ``[batch, seq]`` codes of ``groups_of``.
        decoder_input: ``[batch, rows, hidden]``.
        parts: of the model.
        constants: ``[rows, hidden]`` of ``constant_rows``: rows that equal one are structural.

    Returns:
        ``[batch, rows]`` codes on the device of ``decoder_input``.

    Raises:
        NormprobeError: when the decoder reads other rows than the prompt's.
    """
    groups = _fitted(groups.to(decoder_input.device), decoder_input, parts)
    if constants is not None:
        for row in constants.to(decoder_input):
            same = (decoder_input == row).all(-1) & (groups == _VISUAL)
            groups = torch.where(same, _STRUCTURAL, groups)
    return groups


def _fitted(groups: Tensor, decoder_input: Tensor, parts: Parts) -> Tensor:
    """Add the visual rows that have no place in the prompt."""
    more = decoder_input.shape[-2] - groups.shape[-1]
    if more > 0 and parts.fusion == PREPENDED:
        groups = nn.functional.pad(groups, (more, 0), value=_VISUAL)
    elif more > 0 and parts.fusion == ADDED:
        groups = nn.functional.pad(groups, (0, more), value=_VISUAL)
    if groups.shape != decoder_input.shape[:-1]:
        raise NormprobeError(
            f"decoder layer 1 receives {list(decoder_input.shape[:-1])} positions, but the prompts "
            f"have {list(groups.shape)}: tokens are added or packed inside the model",
            "this model type is not supported yet; open an issue with its name",
        )
    return groups


def decoder_input_of(model: nn.Module, parts: Parts, inputs: Mapping[str, Any]) -> Tensor:
    """What enters decoder layer 1, ``[batch, rows, hidden]``. The forward ends there."""
    door = first_layer(parts)
    seen: list[Tensor] = []
    with observing(model), attached(on_input(door, seen.append)):
        run_until(model, inputs, entering=door)
    return read_stream(model, parts)(seen[0])


def read_stream(model: nn.Module, parts: Parts) -> Callable[[Tensor], Tensor]:
    """What turns the state between two layers into ``[batch, seq, hidden]``."""
    config = getattr(model, "config", None)
    text_config = config.get_text_config(decoder=True) if config is not None else None
    return lambda state: parts.stream.read(state, text_config)


def first_layer(parts: Parts) -> nn.Module:
    """Decoder layer 1: its input is the decoder input."""
    assert parts.decoder_layers is not None
    return next(parts.decoder_layers.module.children())
