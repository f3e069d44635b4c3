"""Many models in one table: does inertia go with disparity over models (RQ3)?"""

from normprobe.measurements import Measurement

MEASUREMENT = Measurement(
    name="survey",
    shown=("survey", "cost", "correlation"),
)
