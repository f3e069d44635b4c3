"""Tables of ``grounding`` as the charts of its section of the page."""

import pandas as pd

from normprobe.measurements.grounding.figures.gap_panels import PANELS
from normprobe.report.charts import Chart, chart, series_of
from normprobe.report.figures.style import GROUP_LOOKS
from normprobe.schema import STRUCTURAL, TEXT, VISUAL

_LOOKS = {
    "gap": GROUP_LOOKS[TEXT],
    "inside": GROUP_LOOKS[VISUAL],
    "outside": GROUP_LOOKS[STRUCTURAL],
}


def grounding_charts(grounding: pd.DataFrame) -> list[Chart]:
    """Of each quantity the gap, then inside and outside."""
    charts = []
    for quantity, label in PANELS.items():
        gap = f"{quantity}_gap"
        line = series_of("gap", _LOOKS["gap"], grounding, gap)
        charts.append(chart(label, [line], zero=True))
        sides = [
            series_of(side, _LOOKS[side], grounding, f"{quantity}_{side}")
            for side in ("inside", "outside")
        ]
        charts.append(chart(f"{quantity} of a word and visual tokens", sides, zero=False))
    return [drawn for drawn in charts if drawn["series"]]
