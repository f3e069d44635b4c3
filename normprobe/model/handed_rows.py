"""Whether rows that a part hands over are rows that enter the decoder: by their directions."""

import torch
from torch import Tensor, nn

from normprobe.hooks import in_full_precision
from normprobe.model.find.overrides import ADDED, ADDS_POSITIONS, CROSS_ATTENTION
from normprobe.model.find.parts import Parts
from normprobe.schema import PROJECTOR_INPUT, PROJECTOR_OUTPUT, VISION_ENCODER

#: Rows that are looked for among what a part hands over, evenly over all of them.
_LOOKED_FOR = 64

#: The cosine of a visual token and of the row that it comes from: 1 but for rounding. It stays
#: above 1 - 2 ** -11 in bfloat16; other rows of a projector are far below.
SAME_ROW = 0.999


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
    if projected is None or parts.fusion in (ADDED, CROSS_ATTENTION):
        return None
    if len(projected) < len(visual) and not parts.behind:
        return (
            "projector",
            f"hands over {len(projected)} rows, and {len(visual)} visual tokens enter the decoder",
        )
    # What is added behind it leaves rows as wide as they are.
    if projected.shape[-1] != visual.shape[-1] and parts.behind in ("", ADDS_POSITIONS):
        return (
            "projector",
            f"hands over rows of size {projected.shape[-1]}, and the decoder reads "
            f"{visual.shape[-1]}",
        )
    if parts.behind:
        return None
    cosine = float(cosines(visual, projected).min())
    if cosine < SAME_ROW:
        return (
            "projector",
            "hands over other rows than enter the decoder at visual places: the cosine of one with "
            f"the nearest is {cosine:.4f}, expected 1",
        )
    return None


def share_of_rows(projected: Tensor | None, visual: Tensor) -> float:
    """Of the visual tokens that are looked at, the share that are rows of a projector."""
    if projected is None or projected.shape[-1] != visual.shape[-1] or not len(projected):
        return 0.0
    return float((cosines(visual, projected) >= SAME_ROW).float().mean())


def are_among(rows: Tensor, others: Tensor) -> bool:
    """Whether each row has the direction of another one."""
    return rows.shape[-1] == others.shape[-1] and bool(cosines(rows, others).min() > SAME_ROW)


def is_one_of_several(projected: Tensor | None, visual: Tensor, *, named: bool = False) -> bool:
    """Whether all rows of a projector are visual tokens, to which another module adds some.

    ``named``: it was named by hand, and may make fewer than half of them.
    """
    if projected is None or projected.shape[-1] != visual.shape[-1]:
        return False
    fewer = len(visual) > len(projected) and (named or 2 * len(projected) > len(visual))
    return fewer and bool(cosines(projected, visual).min() >= SAME_ROW)


@in_full_precision
def cosines(wanted: Tensor, rows: Tensor) -> Tensor:
    """Of some rows the cosine of each with the nearest of others; 1 where there are none."""
    wanted = wanted[wanted.isfinite().all(-1) & (wanted != 0).any(-1)].float()
    if not len(wanted):
        return torch.ones(1)
    places = torch.linspace(0, len(wanted) - 1, min(len(wanted), _LOOKED_FOR)).long()
    looked_for = unit_rows(wanted[places.to(wanted.device)])
    rows = unit_rows(rows.to(wanted)).nan_to_num()
    nearest = rows[(looked_for @ rows.T).argmax(-1)]
    return (looked_for * nearest).sum(-1)


def unit_rows(rows: Tensor) -> Tensor:
    """Each row at length 1; by its largest number first, for squares may overflow."""
    return nn.functional.normalize(rows / rows.abs().amax(-1, keepdim=True), dim=-1)


@in_full_precision
def enter_among(rows: Tensor, entered: Tensor) -> Tensor:
    """Which rows have the direction of one that enters the decoder: bool, ``[rows]``."""
    alike = unit_rows(rows.float()) @ unit_rows(entered.to(rows.device).float()).T
    return alike.nan_to_num().amax(dim=-1) > SAME_ROW
