"""A norm that is there for a while: what would alignment do to this model?"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from normprobe.model.align.norm import attach_norm, inserted_norm, remove_norm
from normprobe.model.align.target import Alignment, align
from normprobe.model.find.parts import Part
from normprobe.model.measured_model import MeasuredModel


@contextmanager
def aligned(
    model: MeasuredModel, target: str | float, examples: Sequence[Mapping[str, Any]]
) -> Iterator[Alignment]:
    """Align a model inside the block; after it, the model is as it was.

    Args:
        model: as ``align`` takes it, like the two that follow.
        target: likewise.
        examples: likewise.

    Raises:
        NormprobeError: as ``align``.
    """
    before = inserted_norm(model.model)
    try:
        yield align(model, target, examples)
    finally:
        remove_norm(model.model)
        if before is not None:
            projector = Part(
                before.placement["after"], model.model.get_submodule(before.placement["after"])
            )
            restored = attach_norm(
                model.model,
                projector,
                before.normalized_shape[0],
                compensate=before.placement["compensate"],
            )
            restored.load_state_dict(before.state_dict(), assign=True)
