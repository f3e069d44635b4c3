"""Which rows of a batch are visual, structural, special and text.

Placeholder ids say where visual rows are written. Some of those rows hold a learned newline or
separator instead of pixels: they are found by asking the model, not by knowing it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normprobe.data.batches import token_groups
from normprobe.errors import NormprobeError
from normprobe.hooks import attached, observing, on_input, run_until
from normprobe.model.parts import Parts
from normprobe.schema import STRUCTURAL, TOKEN_GROUPS, VISUAL

_VISUAL, _STRUCTURAL = TOKEN_GROUPS.index(VISUAL), TOKEN_GROUPS.index(STRUCTURAL)


def groups_of(
    inputs: Mapping[str, Any], parts: Parts, special_token_ids: Iterable[int] | None
) -> Tensor:
    """Token group codes of a batch, every placeholder row counted as visual.

    Args:
        inputs: what a processor returned.
        parts: of the model that takes them.
        special_token_ids: ids that count as special; None: no token does.

    Returns:
        ``[batch, seq]`` int8 codes of ``schema.TOKEN_GROUPS``, padding ``schema.PADDING``.

    Raises:
        NormprobeError: without ``input_ids``, or with an image but no placeholder for it.
    """
    if "input_ids" not in inputs:
        raise NormprobeError(
            f"the inputs hold no input_ids; received {', '.join(inputs)}",
            "pass what the model's processor returns for text and images",
        )
    groups = token_groups(
        inputs["input_ids"],
        inputs.get("attention_mask"),
        parts.image_token_ids,
        list(special_token_ids or ()),
    )
    if pixel_tensors(inputs) and not bool((groups == _VISUAL).any()):
        raise NormprobeError(
            f"the prompt holds no image token: expected one of the ids "
            f"{list(parts.image_token_ids)} in input_ids",
            "use the processor of this model, or check config.image_token_id",
        )
    return groups


def pixel_tensors(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """The floating-point image tensors of a batch."""
    return {
        name: value
        for name, value in inputs.items()
        if isinstance(value, Tensor) and value.is_floating_point() and "pixel" in name
    }


def constant_rows(
    model: nn.Module, parts: Parts, inputs: Mapping[str, Any], groups: Tensor
) -> Tensor:
    """The distinct placeholder rows that other pixels leave as they are.

    Two runs up to the decoder's door, the second with noise for pixels. Costs the vision encoder
    twice, no decoder layer. Done once for a model: later batches recognise the rows by equality.

    Args:
        model: on the device of ``inputs``.
        parts: of ``find_parts``.
        inputs: what a processor returned for at least one image.
        groups: of ``groups_of``.

    Returns:
        ``[rows, hidden]``; no rows for most models.
    """
    other_pixels = {name: _perturbed(value) for name, value in pixel_tensors(inputs).items()}
    seen = _decoder_input(model, parts, inputs)
    other = _decoder_input(model, parts, {**inputs, **other_pixels})
    placeholders = (groups == _VISUAL).to(seen.device)
    constant = placeholders & (seen == other).all(-1)
    rows: Tensor = torch.unique(seen[constant], dim=0)
    return rows


def _perturbed(pixels: Tensor) -> Tensor:
    """Other pixels of about the same size. Zeros stay: an all-zero tile means that there is none."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(pixels.shape, generator=generator).to(pixels)
    return torch.where(pixels != 0, pixels + noise, pixels)


def mark_structural(groups: Tensor, decoder_input: Tensor, constants: Tensor) -> Tensor:
    """Turn the visual rows that equal a constant row into structural ones.

    Args:
        groups: ``[batch, seq]`` codes.
        decoder_input: ``[batch, seq, hidden]``.
        constants: ``[rows, hidden]`` of ``constant_rows``.

    Returns:
        ``[batch, seq]`` codes on the device of ``decoder_input``.
    """
    groups = groups.to(decoder_input.device)
    for row in constants.to(decoder_input):
        same = (decoder_input == row).all(-1) & (groups == _VISUAL)
        groups = torch.where(same, _STRUCTURAL, groups)
    return groups


def _decoder_input(model: nn.Module, parts: Parts, inputs: Mapping[str, Any]) -> Tensor:
    assert parts.decoder_layers is not None
    door = first_layer(parts)
    seen: list[Tensor] = []
    with observing(model), attached(on_input(door, seen.append)):
        run_until(model, inputs, entering=door)
    return seen[0]


def first_layer(parts: Parts) -> nn.Module:
    """Decoder layer 1: its input is the decoder input."""
    assert parts.decoder_layers is not None
    return next(parts.decoder_layers.module.children())
