"""Where text looks: over a picture, at words' boxes, and at tokens that the tower made loud."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from normprobe.extensions.pictures.attention import Attention
from normprobe.extensions.pictures.attention.shares import Shares
from normprobe.extensions.pictures.follow import Follow
from normprobe.extensions.pictures.grounding import Grounding
from normprobe.extensions.pictures.nearest import Nearest
from normprobe.measurements.measurement import Measurement
from normprobe.registry import MEASURE, Extension


class _Pictures(Extension):
    panel = MEASURE

    def measurements(self) -> Sequence[Measurement]:
        return Attention(), Grounding(), Shares(), Follow(), Nearest()

    def commands(self) -> Mapping[str, Callable[..., None]]:
        from normprobe.extensions.pictures.attention.command import attention

        return {"attention": attention}

    def methods(self) -> Mapping[str, Callable[..., Any]]:
        from normprobe.extensions.pictures.attention.method import attention

        return {"attention": attention}


EXTENSION = _Pictures()
