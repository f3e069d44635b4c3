"""Tables of ``attention`` as the charts of its section of the page."""

import pandas as pd

from normprobe.report.charts import Chart, chart, series_of
from normprobe.report.figures.style import GROUP_LOOKS, SERIES_COLORS
from normprobe.schema import VISUAL

#: What can be drawn of ``attention.csv``: column and words.
_ATTENTION = {
    "share_mean": "share of the attention on visual tokens",
    "entropy_mean": "entropy of the attention over them (1: even)",
    "signal_to_noise": "attention inside the box / outside",
    "score_gap": "score before the softmax, inside the box - outside",
}


def attention_charts(attention: pd.DataFrame) -> list[Chart]:
    """Charts of ``attention.csv``: a series for each query."""
    queries = list(dict.fromkeys(attention["query"]))
    charts = []
    for column, label in _ATTENTION.items():
        if column not in attention:
            continue
        series = [
            series_of(str(query), GROUP_LOOKS[VISUAL], rows, column)
            | {"color": SERIES_COLORS[place % len(SERIES_COLORS)]}
            for place, query in enumerate(queries)
            if len(rows := attention[attention["query"] == query])
        ]
        charts.append(chart(label, series, zero=True))
    return [drawn for drawn in charts if drawn["series"]]
