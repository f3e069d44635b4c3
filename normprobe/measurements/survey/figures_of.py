"""What draws a survey: inertia only where a model has it."""

from importlib import import_module
from types import ModuleType

from normprobe.runs.run_folder import RunStore


def modules(run: RunStore) -> list[ModuleType]:
    """The modules that draw a survey."""
    survey = run.table("survey")
    both = survey[["disparity_input", "inertia_gap"]].notna().all(axis=1)
    names = ["survey", *(["inertia"] if both.any() else [])]
    return [import_module(f"{__package__}.figures.{name}") for name in names]
