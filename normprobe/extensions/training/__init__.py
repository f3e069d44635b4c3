"""A training from inside: states of its own forwards, gradients and updates of its weights."""

from collections.abc import Callable, Mapping, Sequence

from normprobe.measurements.measurement import (
    ComparedModule,
    Measurement,
    ShownModule,
)
from normprobe.registry import MAKE, Extension


class Training(Measurement):
    """A training from inside: states of its own forwards, gradients and updates of its weights."""

    name = "training"
    measures = ("decoder_layers",)
    section_tables = ("training", "gradients", "alarms")

    @property
    def shown(self) -> ShownModule:
        from normprobe.extensions.training import shown

        return shown

    @property
    def compared(self) -> ComparedModule:
        from normprobe.extensions.training import compared

        return compared


class _TrainingExtension(Extension):
    panel = MAKE

    def measurements(self) -> Sequence[Measurement]:
        return (Training(),)

    def commands(self) -> Mapping[str, Callable[..., None]]:
        from normprobe.extensions.training.command import watch

        return {"watch": watch}


EXTENSION = _TrainingExtension()
