"""Which states a part is given and returns, and which of their rows are no padding."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from normprobe.hooks import HIDDEN_STATE, PROJECTED_STATE, hidden_state_of
from normprobe.model.decoder_rows import HIDES_A_KEY

#: Which rows a mask hides from the blocks of an encoder, among what it was given.
HIDDEN_ROWS = "hidden_rows"

#: Arguments that are of rows, and no states.
_NO_STATE = re.compile("pos|mask|cos|sin|rot|freq|time")


def most_side_by_side(arguments: Mapping[Any, Any]) -> int:
    """The most states of one shape that a list or tuple among arguments holds."""
    most = 0
    for value in arguments.values():
        if isinstance(value, tuple | list):
            states = [each for each in value if isinstance(each, Tensor) and each.dim() > 1]
            alike = [each for each in states if each.shape == states[0].shape]
            most = max(most, len(alike) * bool(alike and alike[0].is_floating_point()))
    return most


def states_apart(arguments: Mapping[Any, Any], entered: Tensor) -> list[Tensor]:
    """States of the same rows as one that entered, each an argument of its own (Florence-VL)."""
    given = [each for name, each in arguments.items() if not _NO_STATE.search(str(name))]
    states = [each for each in given if isinstance(each, Tensor) and each.is_floating_point()]
    return [each for each in states if each.dim() > 2 and each.shape[:-1] == entered.shape[:-1]]


def returned_states(output: Any) -> list[Tensor]:
    """The states that a module returns side by side; one where a field names it."""
    first = hidden_state_of(output)
    named = isinstance(output, Mapping) and output.get(HIDDEN_STATE) is not None
    items = output.values() if isinstance(output, Mapping) else output
    if named or not isinstance(output, Mapping | tuple):
        return [first]
    tensors_in = (item for item in items if isinstance(item, Tensor) and item is not first)
    return [first, *(t for t in tensors_in if t.is_floating_point() and t.dim() > 1)]


def projected_state(output: Any) -> Tensor:
    """What a projector returns for the language model, and not one row an image pooled of it."""
    state, rows = hidden_state_of(output, field=PROJECTED_STATE), hidden_state_of(output)
    pooled = rows.dim() == 3 and rows.shape[1] > 1 and state.shape[:-1] == rows.shape[:1]
    return rows if pooled else state


def rows_a_mask_hides(state: Tensor, given: Mapping[Any, Any]) -> Tensor | None:
    """Which rows, ``[images, rows]`` bool, a mask of attention hides from all, if there is one.

    So code pads pictures of several sizes in one batch (LLaVA-UHD v2). It runs in each forward:
    unlike ``decoder_rows``, it does not wait for the device to tell which way a mask hides.
    """
    for name, mask in given.items():
        if (
            not isinstance(mask, Tensor)
            or state.dim() != 3
            or mask.shape[-1:] != state.shape[-2:-1]
        ):
            continue
        if mask.dim() in (3, 4) and "position" not in str(name):
            away = mask <= HIDES_A_KEY if mask.is_floating_point() else ~mask.bool()
            away = away.flatten(1, -2).all(1)
        elif (
            mask.shape == state.shape[:-1] and "mask" in str(name) and not mask.is_floating_point()
        ):
            away = ~mask.bool()
        else:
            continue
        away = away & ~away[:, :1]  # True may hide, too; the first row is one of the picture
        return away.expand(len(state), -1) if len(away) in (1, len(state)) else None
    return None


def counted_rows(state: Tensor, arguments: Mapping[Any, Any]) -> Tensor:
    """Which rows of ``state``, ``[..., hidden]``, are no padding: bool, ``[rows]``."""
    rows = state.shape[:-1].numel()
    counted = torch.ones(rows, dtype=torch.bool, device=state.device)
    for name, told in arguments.items():
        if not isinstance(told, Tensor) or told.numel() < 2:
            continue
        if name == HIDDEN_ROWS:
            gone = (~told).sum() == rows  # what they pad, already (Phi-4-reasoning-vision)
            told = told[:, -state.shape[-2] :]  # class rows before it may be gone
            if told.numel() != rows:
                continue
            there = ~told.reshape(-1) | gone
        elif "mask" in str(name) and rows % told.numel() == 0:  # one value a row, or a tile of rows
            there = told.reshape(-1).repeat_interleave(rows // told.numel()).bool()
        elif "position" in str(name) and told.shape[:-1] == state.shape[:-1]:  # [..., axes]
            there = (told != -1).any(dim=-1).reshape(-1)
        else:
            continue
        counted &= there.to(state.device)
    return counted
