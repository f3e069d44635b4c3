"""A norm that is there for a while: what would alignment do to this model?"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from normprobe.model.align.norm import norm_set_aside, remove_norm
from normprobe.model.align.target import Alignment, align
from normprobe.model.measured_model import MeasuredModel


@contextmanager
def aligned(
    model: MeasuredModel, target: str | float, examples: Sequence[Mapping[str, Any]]
) -> Iterator[Alignment]:
    """Align a model inside the block; after it, the model is as it was.

    What other threads run on it passes as if it were not aligned.
    """
    try:
        with norm_set_aside(model.model):
            try:
                yield align(model, target, examples, here_alone=True)
            finally:
                remove_norm(model.model)
    finally:
        model.notice_changed_weights()
