"""Every measurement: those of the core, one folder each, and those of the extensions."""

from functools import cache

from normprobe.measurements.align import Align
from normprobe.measurements.compare import Compare
from normprobe.measurements.embeddings import Embeddings
from normprobe.measurements.interface import Interface
from normprobe.measurements.layers import Layers
from normprobe.measurements.layers.tower import Tower
from normprobe.measurements.measurement import ComparedModule, Measurement, SampleMeasurement
from normprobe.registry import extensions

#: Those of the core, in the order of ``--help``. A new one is a folder and its class here.
CORE = (Interface(), Layers(), Embeddings(), Compare(), Align(), Tower())


@cache
def measurements() -> dict[str, Measurement]:
    """All of them by name, in order; a name that the core has is no extension's."""
    found: dict[str, Measurement] = {}
    for offered in (*CORE, *(each for of in extensions() for each in of.measurements())):
        found.setdefault(offered.name, offered)
    return found


def over_samples() -> dict[str, SampleMeasurement]:
    """Those over samples."""
    found = measurements().items()
    return {name: offered for name, offered in found if isinstance(offered, SampleMeasurement)}


def compared_by(name: str) -> ComparedModule:
    """How runs of a measurement are ranked and compared.

    Raises:
        LookupError: they are not.
    """
    found = measurement(name).compared
    if found is None:
        raise LookupError(f"runs of {name} are not compared")
    return found


def measurement(name: str) -> Measurement:
    """The measurement of a name.

    Raises:
        KeyError: there is none: a run folder may come from another version.
    """
    return measurements()[name]
