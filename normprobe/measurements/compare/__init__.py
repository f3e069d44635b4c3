"""Runs of one measurement side by side: models, checkpoints, before and after (Figures 3-5).

What ranks the runs of a measurement, and how they are drawn, its own folder says (``compared``).
"""

from normprobe.measurements import Measurement

MEASUREMENT = Measurement(
    name="compare",
    table="ranking",
    shown=("compare", "ranking", "correlation"),
)
