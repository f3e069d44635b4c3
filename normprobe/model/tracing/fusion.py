"""How the visual rows meet the text."""

from collections.abc import Sequence

import torch
from torch import Tensor

from normprobe.model.tracing.language import Language
from normprobe.model.tracing.observation import Observation, ObservedCall
from normprobe.model.tracing.provenance import emitters_of
from normprobe.model.tracing.sketches import SAME_DIRECTION, misfit
from normprobe.model.tracing.visual_rows import VisualRows


def is_looked_up(calls: Sequence[ObservedCall], rows: VisualRows, embedding: str) -> bool:
    """Whether the visual rows come from the text table: an image tokenizer chose their ids."""
    lookups = [call for call in calls if call.name == embedding]
    return any(emitters_of(lookups, state) for state in rows.states)


def fusion_of(
    calls: Sequence[ObservedCall],
    language: Language,
    rows: VisualRows,
    replaced: Sequence[Tensor],
    projector: str | None,
    embedding: str | None,
) -> str:
    """One of the words of ``TracedParts.fusion``, discrete tokens aside."""
    if language.visual is None:
        return "cross-attention" if language.stack.left.by_pixels.any() else "none"
    if language.visual.shape not in [mask.shape for mask in replaced]:
        return "prepended"
    if projector and embedding and _is_added(calls, rows, projector, embedding):
        return "added"
    return "in-sequence"


def _is_added(
    calls: Sequence[ObservedCall], rows: VisualRows, projector: str, embedding: str
) -> bool:
    """Whether the rows are the projector's only without the placeholder's embedding."""
    projected = _outputs(calls, projector)
    embedded = _outputs(calls, embedding)
    whole, without = [float("inf")], [float("inf")]
    for state in rows.states:
        visual = state.by_pixels.flatten()
        of_width = [out.base.rows for out in projected if out.base.width == state.base.width]
        if not of_width:
            continue
        among = torch.cat(of_width)
        whole.append(misfit(state.base.rows[visual], among))
        for out in embedded:
            if out.tensor_shape == state.tensor_shape:
                rest = state.base.rows - out.base.rows
                without.append(misfit(rest[visual], among))
    return min(without) < min(*whole, SAME_DIRECTION)


def _outputs(calls: Sequence[ObservedCall], name: str) -> list[Observation]:
    return [out for call in calls if call.name == name for out in call.outputs]
