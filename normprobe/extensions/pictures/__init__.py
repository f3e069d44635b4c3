"""Where text looks: attention of one question over its picture, and words against their boxes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from normprobe.extensions.pictures.attention import Attention
from normprobe.extensions.pictures.attention.shares import Shares
from normprobe.extensions.pictures.grounding import Grounding
from normprobe.measurements.measurement import Measurement
from normprobe.registry import MEASURE, Extension


class _Pictures(Extension):
    panel = MEASURE

    def measurements(self) -> Sequence[Measurement]:
        return Attention(), Grounding(), Shares()

    def commands(self) -> Mapping[str, Callable[..., None]]:
        from normprobe.extensions.pictures.attention.command import attention

        return {"attention": attention}

    def methods(self) -> Mapping[str, Callable[..., Any]]:
        from normprobe.extensions.pictures.attention.method import attention

        return {"attention": attention}


EXTENSION = _Pictures()
