"""The group of every token at the decoder input, where other pixels tell the visual ones."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from normprobe.inputs.on_device import pixel_inputs
from normprobe.model.find.overrides import CROSS_ATTENTION, DISCRETE
from normprobe.model.measured_model import MeasuredModel, text_ids
from normprobe.model.tracing.trace import TracedParts
from normprobe.schema import (
    AUDIO,
    NON_VISUAL,
    PADDING,
    SPECIAL,
    STRUCTURAL,
    TEXT,
    TOKEN_GROUPS,
    VIDEO,
    VISUAL,
)

Masks = dict[str, NDArray[np.bool_]]

#: Why other pixels do not tell which tokens are visual.
_UNTOLD = {
    CROSS_ATTENTION: "text attends to the image, which has no place among the tokens",
    DISCRETE: "the image tokenizer may give other pixels the same tokens",
}


def traced_groups(
    model: MeasuredModel, inputs: Mapping[str, Any], decoder_input: Tensor, traced: TracedParts
) -> tuple[Masks, float | str]:
    """Visual are the positions that other pixels change, whatever their ids.

    Args:
        model: whose ids tell the other groups.
        inputs: what the processor returned.
        decoder_input: ``[batch, seq, hidden]``.
        traced: of the same inputs.

    Returns:
        A mask ``[batch, seq]`` a group; and how many positions are visual to pixels or to the ids
        alone, or in words why only the ids tell it.
    """
    groups = model.batch(inputs).groups_at(decoder_input).numpy()
    by_id = {group: groups == code for code, group in enumerate(TOKEN_GROUPS)}
    moved, has_image = by_id[VISUAL], bool(pixel_inputs(inputs))
    untold = _untold(model, decoder_input, traced) if has_image else ""
    if has_image and not untold:
        assert traced.visual_positions is not None
        # A trace changes what the inputs hold of videos and sounds, too.
        others = by_id[VIDEO] | by_id[AUDIO] | _padding(model, inputs, groups)
        moved = traced.visual_positions.numpy() & ~others
    masks = {
        VISUAL: moved,
        STRUCTURAL: (by_id[VISUAL] | by_id[STRUCTURAL]) & ~moved,
        **{group: by_id[group] & ~moved for group in (SPECIAL, TEXT, VIDEO, AUDIO)},
    }
    masks[NON_VISUAL] = masks[TEXT] | masks[SPECIAL]
    return masks, untold or float((moved != by_id[VISUAL]).sum())


def _untold(model: MeasuredModel, decoder_input: Tensor, traced: TracedParts) -> str:
    if model.parts.fusion in _UNTOLD:
        return _UNTOLD[model.parts.fusion]
    positions = traced.visual_positions
    if positions is None or positions.shape != decoder_input.shape[:-1]:
        return "a trace does not find their places"
    return ""


def _padding(
    model: MeasuredModel, inputs: Mapping[str, Any], groups: NDArray[Any]
) -> NDArray[np.bool_]:
    _, mask = text_ids(inputs, model.parts)
    if mask is None or mask.shape != groups.shape:  # visual tokens have no place in the prompt
        return np.asarray(groups == PADDING)
    return np.asarray(mask.cpu().numpy() == 0)
