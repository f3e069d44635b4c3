"""The figure of ``embeddings``."""

import numpy as np
import pandas as pd
from normprobe.measurements.embeddings.figures.embeddings import figure
from support import made_tables

TEXT = (made_tables.embeddings(), made_tables.tokens(), made_tables.histogram())


def names(axes):
    return [text.get_text() for text in axes.texts if text.get_text()[0].isdigit()]


def test_bars_hold_the_counts():
    axes = figure("t", *TEXT).axes[0]
    heights = [bar.get_height() for bar in axes.patches]
    assert sum(heights) == TEXT[2]["count"].sum()
    assert axes.get_yscale() == "log"
    assert axes.get_xscale() == "linear"
    assert axes.get_ylim()[0] < 1  # a single row is visible


def test_the_loudest_are_named_from_below():
    axes = figure("t", *TEXT).axes[0]
    assert names(axes)[:3] == ['4.020  "<|im_start|>"', '3.908  "␣the"', r'3.797  "\n\n"']
    heights = [text.xyann[1] for text in axes.texts if text.get_text() in names(axes)]
    assert heights == sorted(heights)
    assert len(set(np.diff(heights).round(6))) == 1


def test_the_mean_is_that_of_the_nonzero_rows():
    axes = figure("t", *TEXT).axes[0]
    mean = next(line for line in axes.get_lines() if line.get_label() == "mean")
    rows = TEXT[0][TEXT[0]["rows"] == "nonzero_rows"]
    assert mean.get_xdata()[0] == rows["norm_mean"].iloc[0]


def test_special_tokens_are_marked():
    drawing = figure("t", *TEXT)
    labels = [text.get_text() for text in drawing.legends[0].get_texts()]
    assert set(labels) == {"mean", "text table", "special tokens"}
    colors = {text.get_text(): text.get_color() for text in drawing.axes[0].texts}
    assert colors['4.020  "<|im_start|>"'] != colors['3.908  "␣the"']


def test_two_tables_two_panels_and_rows_without_text():
    both = [
        make("text", "visual")
        for make in (made_tables.embeddings, made_tables.tokens, made_tables.histogram)
    ]
    drawing = figure("t", *both)
    assert len(drawing.axes) == 2
    assert names(drawing.axes[1])[0].endswith("row 151643")


def test_log_norms_and_zero_rows():
    edges = np.geomspace(0.05, 5, 11)
    bins = pd.DataFrame(
        {"table": "text", "special": False, "left": edges[:-1], "right": edges[1:], "count": 7}
    )
    zero = bins.head(1).assign(left=0.0, right=0.0, count=412)
    axes = figure("t", *TEXT[:2], pd.concat([zero, bins])).axes[0]
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "L2 norm of an embedding row (412 zero rows not drawn)"
    assert sum(bar.get_height() for bar in axes.patches) == 70
