"""Runs of one measurement side by side: models, checkpoints, before and after (Figures 3-5).

What ranks the runs of a measurement, and how they are drawn, its own folder says (``compared``).
"""

from normprobe.measurements.measurement import Measurement, ShownModule


class Compare(Measurement):
    """Runs of one measurement side by side: models, checkpoints, before and after (Figures 3-5)."""

    name = "compare"
    table = "ranking"
    section_tables = ("compare", "ranking", "correlation")

    @property
    def shown(self) -> ShownModule:
        from normprobe.measurements.compare import shown

        return shown
