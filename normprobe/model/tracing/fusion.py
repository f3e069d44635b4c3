"""How visual tokens meet text."""

from collections.abc import Sequence

import torch
from torch import Tensor

from normprobe.model.tracing.language import Language
from normprobe.model.tracing.observation import Observation, ObservedCall
from normprobe.model.tracing.origins import emitters_of
from normprobe.model.tracing.sketches import SAME_DIRECTION, misfit
from normprobe.model.tracing.visual_tokens import VisualTokens


def is_looked_up(calls: Sequence[ObservedCall], visual: VisualTokens, embedding: str) -> bool:
    """Whether visual tokens are rows of the text table: an image tokenizer chose their ids."""
    lookups = [call for call in calls if call.name == embedding]
    return any(emitters_of(lookups, state) for state in visual.states)


def fusion_of(
    calls: Sequence[ObservedCall],
    language: Language,
    visual: VisualTokens,
    replaced: Sequence[Tensor],
    projector: str | None,
    embedding: str | None,
) -> str:
    """One of the words of ``TracedParts.fusion``, discrete tokens aside."""
    if language.visual is None:
        return "cross-attention" if language.stack.output.by_pixels.any() else "none"
    if language.visual.shape not in [mask.shape for mask in replaced]:
        return "prepended"
    if projector and embedding and _is_added(calls, visual, projector, embedding):
        return "added"
    return "in-sequence"


def _is_added(
    calls: Sequence[ObservedCall], visual: VisualTokens, projector: str, embedding: str
) -> bool:
    """Whether visual tokens are the projector's output plus the embedding of the placeholder.

    Then they resemble that output more with the embedding subtracted than without.
    """
    projected = _outputs(calls, projector)
    embedded = _outputs(calls, embedding)
    whole, without = [float("inf")], [float("inf")]
    for state in visual.states:
        changed = state.by_pixels.flatten()
        of_width = [out.base.vectors for out in projected if out.base.width == state.base.width]
        if not of_width:
            continue
        among = torch.cat(of_width)
        whole.append(misfit(state.base.vectors[changed], among))
        for out in embedded:
            if out.tensor_shape == state.tensor_shape:
                rest = state.base.vectors - out.base.vectors
                without.append(misfit(rest[changed], among))
    return min(without) < min(*whole, SAME_DIRECTION)


def _outputs(calls: Sequence[ObservedCall], name: str) -> list[Observation]:
    return [out for call in calls if call.name == name for out in call.outputs]
