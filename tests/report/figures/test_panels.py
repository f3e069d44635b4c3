"""The legend below the panels, and the marks that keep single points in sight."""

import pandas as pd
import pytest
from matplotlib.patches import Patch
from support import made_tables
from support.flat import tidied

from normprobe.measurements.compare.measure import joined
from normprobe.measurements.layers.compared import (
    draw_overlay,
    draw_small_multiples,
    draw_training,
)
from normprobe.report.figures.lines import draw_line, legend_below, panels
from normprobe.report.figures.style import look, series_look


@pytest.mark.parametrize(("entries", "length"), [(1, 4), (5, 12), (11, 22), (3, 90), (0, 1)])
def test_a_legend_stays_inside_whatever_it_names(entries, length):
    with look():
        drawing, grid = panels("a title", 7, 2.5, (1, 2))
        legend_below(drawing, grid, [Patch(label="m" * length) for _ in range(entries)])
        drawing.draw_without_rendering()
        for legend in drawing.legends:
            box = legend.get_window_extent()
            assert box.y0 >= 0
            assert box.width <= drawing.bbox.width or length > 60
        assert all(axes.get_window_extent().height > 90 for axes in grid.flat)


def test_as_many_runs_as_fit_a_figure_look_different():
    looks = {series_look(place)[:2] for place in range(49)}
    assert len(looks) == 49


def compared(layers=2, runs=10):
    table = made_tables.layers()
    table = tidied("layers", table[table["layer"] < layers])
    names = [f"a-model-with-a-long-name-{n}" for n in range(runs)]
    return joined([table] * runs, names, range(runs))


def test_the_legend_names_what_any_panel_shows():
    table = compared(layers=4, runs=2)
    first = table["run"] == table["run"].iloc[0]
    table = table[~(first & (table["group"] == "structural"))]
    drawing = draw_small_multiples("t", table)
    words = [text.get_text() for text in drawing.legends[0].get_texts()]
    assert "structural" in words
    assert "structural" not in [line.get_label() for line in drawing.axes[0].lines]


@pytest.mark.parametrize("drawn_by", [draw_overlay, draw_training, draw_small_multiples])
def test_the_only_layer_of_a_model_is_a_mark(drawn_by):
    """Its cosine is one point: no line shows it."""
    drawing = drawn_by("t", compared())
    for axes in drawing.axes:
        for line in axes.lines:
            known = sum(pd.notna(value) for value in line.get_ydata())
            if known == 1:
                assert line.get_marker() not in ("", "None")
                assert line.get_markersize() > 0
                assert not line.get_clip_on()


def test_a_point_between_gaps_is_a_mark():
    numbers = [float(layer) for layer in range(60)]
    numbers[6] = numbers[8] = float("nan")
    _, grid = panels("t", 4, 3)
    draw_line(grid[0, 0], pd.DataFrame({"layer": range(60), "n": numbers}), "n", series_look(0), "")
    (line,) = grid[0, 0].lines
    assert 7 in line.get_markevery()
    assert not {6, 8} & set(line.get_markevery())
    assert len(line.get_markevery()) < 16


def test_a_run_without_numbers_leaves_the_layout_alone():
    """A model with cross-attention has no visual tokens in its layers."""
    table = compared(layers=4, runs=3)
    lacks = table["run"].eq(table["run"].iloc[0]) & table["group"].eq("visual")
    no_norm = table["mean"].mask(lacks & (table["quantity"] == "norm"))
    for rows in (table[~lacks], table.assign(mean=no_norm)):
        drawing = draw_overlay("t", rows)
        drawing.draw_without_rendering()
        assert all(axes.get_window_extent().width > 200 for axes in drawing.axes)
