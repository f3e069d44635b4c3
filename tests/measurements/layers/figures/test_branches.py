"""The figure of branches draws what the table holds: lines with their intervals."""

import numpy as np
import pandas as pd
import pytest
from normprobe.measurements.layers.charts import branch_charts
from normprobe.measurements.layers.figures.branches import BRANCH_LINES, figure

from normprobe.report.figures.lines import INTERVAL_WORDS
from normprobe.report.figures.style import GROUP_LOOKS
from normprobe.schema import BRANCH_METRICS

LAYERS = 4


def made(*groups: str) -> pd.DataFrame:
    rows = []
    for place, (branch, group) in enumerate((b, g) for b in ("attention", "mlp") for g in groups):
        for layer in range(1, LAYERS + 1):
            row = {"layer": layer, "branch": branch, "group": group}
            for metric in BRANCH_METRICS:
                mean = 1.0 + place + layer / 10
                row |= {f"{metric}_mean": mean, f"{metric}_mean_ci_low": mean - 0.1}
                row[f"{metric}_mean_ci_high"] = mean + 0.2
            rows.append(row)
    return pd.DataFrame(rows)


def test_lines_and_intervals_are_those_of_the_table() -> None:
    table = made("visual", "text", "special")
    drawing = figure("made", table)
    for axes, metric in zip(drawing.axes, BRANCH_METRICS, strict=True):
        found = {(line.get_linestyle(), line.get_color()): line for line in axes.get_lines()}
        assert len(found) == 4
        for branch in ("attention", "mlp"):
            for group in ("visual", "text"):
                rows = table[(table["branch"] == branch) & (table["group"] == group)]
                line = found[BRANCH_LINES[branch], GROUP_LOOKS[group].color]
                assert line.get_ydata() == pytest.approx(rows[f"{metric}_mean"])
        bands = [band.get_paths()[0].vertices[:, 1] for band in axes.collections]
        heights = sorted(np.round(band.max() - band.min(), 6) for band in bands)
        assert heights == pytest.approx([0.3 + (LAYERS - 1) / 10] * 4)
    (legend,) = drawing.legends
    words = [text.get_text() for text in legend.get_texts()]
    assert words == ["visual", "text", "attention", "MLP", INTERVAL_WORDS]


def test_a_language_model_has_no_visual_line() -> None:
    drawing = figure("made", made("text"))
    assert all(len(axes.get_lines()) == 2 for axes in drawing.axes)
    assert "visual" not in [text.get_text() for text in drawing.legends[0].get_texts()]


def test_the_page_draws_the_same_lines() -> None:
    charts = branch_charts(made("visual", "text"))
    assert [chart["label"] for chart in charts][
        1
    ] == "relative update, \u2016a\u2016 / \u2016x\u2016"
    for chart in charts:
        assert [line["name"] for line in chart["series"]] == [
            "attention, visual",
            "attention, text",
            "MLP, visual",
            "MLP, text",
        ]
        assert len({(line["color"], line["dash"]) for line in chart["series"]}) == 4
        assert chart["series"][3]["y"] == pytest.approx([4.1, 4.2, 4.3, 4.4])
