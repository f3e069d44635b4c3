"""What draws a comparison: the figures that the compared measurement offers."""

from normprobe.measurements import measurement
from normprobe.report.figures.draw import Drawing
from normprobe.runs.run_folder import RunStore


def drawings(run: RunStore) -> list[Drawing]:
    """The figures of a run of ``compare``."""
    compared = measurement(str(run.record["compared"])).module("compared")
    found: list[Drawing] = compared.drawings(run.table("compare"))
    return found
