"""Every figure in axes that a caller made."""

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from support.figure_cases import FIGURES, TABLES, drawings, write

from normprobe.errors import NormprobeError
from normprobe.report.figures.draw import figure_of
from normprobe.run import Run


def legend_entries(figure):
    """What all its legends name."""
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    return {text.get_text() for legend in legends if legend for text in legend.get_texts()}


def artists(axes):
    """What is drawn in a panel, and around it."""
    kinds = axes.lines, axes.collections, axes.patches, axes.images, axes.texts
    return axes.get_title("left"), axes.get_xlabel(), *map(len, kinds)


@pytest.mark.parametrize("case", FIGURES)
def test_every_figure_is_drawn_into_the_axes_of_a_caller(tmp_path, case):
    run = write(tmp_path, TABLES[case])
    for drawing in drawings(case, run):
        if drawing.name not in FIGURES[case]:
            continue
        with pytest.raises(NormprobeError, match="received axes for 0") as refused:
            figure_of(drawing, run, [])
        count = int(refused.value.problem.split("has ")[1].split()[0])
        theirs = Figure(figsize=(3, 2 * count))
        axes = theirs.subplots(count, squeeze=False)
        settings = dict(matplotlib.rcParams)
        assert figure_of(drawing, run, axes) is theirs
        assert dict(matplotlib.rcParams) == settings
        theirs.draw_without_rendering()
        own = figure_of(drawing, run)
        assert theirs.get_suptitle() == "" != own.get_suptitle()
        assert legend_entries(theirs) == legend_entries(own)
        for theirs_panel, own_panel in zip(axes.flat, own.axes, strict=False):
            assert artists(theirs_panel) == artists(own_panel)


def test_a_single_axes_needs_no_list_and_too_many_are_refused(tmp_path):
    run = Run(write(tmp_path, TABLES["interface"]))
    run.store.record["command"] = "interface"
    theirs = Figure()
    axes = theirs.subplots()
    assert run.figure("interface", ax=axes) is theirs
    assert axes.lines
    with pytest.raises(NormprobeError, match="has 1 panels; received axes for 2"):
        run.figure("interface", ax=np.array([axes, axes]))


def test_a_figure_that_there_is_not_is_named(tmp_path):
    run = Run(write(tmp_path, TABLES["layers"]))
    run.store.record["command"] = "layers"
    with pytest.raises(NormprobeError, match="a run of layers has no figure bars") as refused:
        run.figure("bars")
    assert "turning" in refused.value.remedy
