"""Whether the parts that were found are those that bring an image to the decoder.

A part is found by names and structure. The first batch with an image shows what it hands over.
"""

import torch
from torch import Tensor, nn

from normprobe.model.find.overrides import ADDED
from normprobe.model.find.parts import Parts
from normprobe.schema import PROJECTOR_INPUT, PROJECTOR_OUTPUT, VISION_ENCODER

#: Visual tokens that are looked for among what the projector hands over, evenly over all of them.
_LOOKED_FOR = 64

#: The cosine of a visual token and of the row that it comes from: 1 but for rounding. It stays
#: above 1 - 2 ** -11 in bfloat16; other rows of a projector are far below.
_SAME_DIRECTION = 0.999


def wrong_part(
    parts: Parts, handed_over: dict[str, Tensor], visual: Tensor
) -> tuple[str, str] | None:
    """Which part looks wrong by one batch with an image, and why.

    Args:
        parts: of a model whose visual tokens have rows of their own in the sequence.
        handed_over: rows ``[rows, hidden]`` by stage, of ``VisionStages.visual_rows``.
        visual: visual tokens at the decoder input, ``[tokens, hidden]``, without structural ones.

    Returns:
        The role of the part, and what it does that it should not; None: all looks right.
    """
    encoder, projector = (
        (part, handed_over.get(stage))
        for part, stage in (
            (parts.vision_encoder, VISION_ENCODER),
            (parts.projector, PROJECTOR_OUTPUT),
        )
    )
    for role, (part, rows) in (("vision_encoder", encoder), ("projector", projector)):
        never_called = part is None or isinstance(part.module, nn.ModuleList)
        if rows is None and not never_called:
            return role, "hands over nothing before decoder layer 1, though the prompt has an image"
    encoded, projected = encoder[1], projector[1]
    taken = handed_over.get(PROJECTOR_INPUT)
    # A learned newline may follow each line before the projector; a merger takes four rows for one.
    if encoded is not None and taken is not None and 2 * len(encoded) < len(taken):
        return (
            "vision_encoder",
            f"hands over {len(encoded)} rows, and the projector takes {len(taken)}",
        )
    if projected is None or parts.behind or parts.fusion == ADDED:
        return None
    if len(projected) < len(visual):
        return (
            "projector",
            f"hands over {len(projected)} rows, and {len(visual)} visual tokens enter the decoder",
        )
    if projected.shape[-1] != visual.shape[-1]:
        return (
            "projector",
            f"hands over rows of size {projected.shape[-1]}, and the decoder reads "
            f"{visual.shape[-1]}",
        )
    cosine = _lowest_cosine(visual, projected)
    if cosine < _SAME_DIRECTION:
        return (
            "projector",
            "hands over other rows than enter the decoder at visual places: the cosine of one with "
            f"the nearest is {cosine:.2f}, expected 1",
        )
    return None


def _lowest_cosine(visual: Tensor, projected: Tensor) -> float:
    """Of visual tokens the lowest cosine with the row that is nearest to each; 1 where none is."""
    visual = visual[visual.isfinite().all(-1) & (visual != 0).any(-1)].float()
    if not len(visual):
        return 1.0
    places = torch.linspace(0, len(visual) - 1, min(len(visual), _LOOKED_FOR)).long()
    looked_for = _unit(visual[places.to(visual.device)])
    rows = _unit(projected.to(visual)).nan_to_num()
    nearest = rows[(looked_for @ rows.T).argmax(-1)]
    return float((looked_for * nearest).sum(-1).min())


def _unit(rows: Tensor) -> Tensor:
    """Each row at length 1; by its largest number first, for squares may overflow."""
    return nn.functional.normalize(rows / rows.abs().amax(-1, keepdim=True), dim=-1)
