"""What draws a comparison: the figures that the compared measurement offers."""

from types import ModuleType

from normprobe.measurements import measurement
from normprobe.runs.run_folder import RunStore


def modules(run: RunStore) -> list[ModuleType]:
    """The modules that draw a run of ``compare``."""
    compared = measurement(str(run.record["compared"]))
    names = compared.module("compared").figures(run.table("compare"))
    return [compared.module(f"figures.{name}") for name in names]
