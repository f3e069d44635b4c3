"""Many models in one table: does inertia go with disparity over models (RQ3)?"""

from normprobe.measurements import Measurement

MEASUREMENT = Measurement(
    name="survey",
    shown=("survey", "cost", "correlation", "table1", "table2", "table3", "table6"),
)
