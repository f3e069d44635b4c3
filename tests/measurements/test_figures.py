"""Every figure of every measurement: its files, and that its texts can be read."""

import warnings

import matplotlib
import pytest
from matplotlib.image import imread
from matplotlib.text import Text
from support.figure_cases import FIGURES, TABLES, drawings, write

from normprobe.report.figures.draw import build, draw
from normprobe.report.figures.style import look


@pytest.mark.parametrize("case", FIGURES)
def test_redraws_from_csv_alone_without_a_warning(tmp_path, case):
    run = write(tmp_path, TABLES[case])
    settings = dict(matplotlib.rcParams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a missing glyph or a failed layout is a warning
        files = draw(drawings(case, run), run)
    assert dict(matplotlib.rcParams) == settings
    expected = {f"{name}.{kind}" for name in FIGURES[case] for kind in ("png", "pdf")}
    assert {file.name for file in files} == expected
    assert {file.name for file in (tmp_path / "plots").iterdir()} == expected
    for file in files:
        if file.suffix == ".png":
            image = imread(file)[..., :3]
            assert 660 <= image.shape[1] <= 1400  # one or two columns at 200 dpi
            assert 0.02 < (image < 0.95).any(axis=2).mean() < 0.8  # pictures fill most of it
        else:
            content = file.read_bytes()
            assert b"/Type3" not in content
            assert b"/FontFile2" in content  # TrueType, embedded


def shown_texts(axes):
    """The texts of a panel with their boxes in pixels, leader lines left out."""
    yield from axes.texts
    yield from (axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label)
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        for tick in axis.get_major_ticks():
            if min(low, high) <= tick.get_loc() <= max(low, high):  # others are not drawn
                yield tick.label1


@pytest.mark.parametrize("case", FIGURES)
def test_texts_stay_apart_and_inside(tmp_path, case):
    run = write(tmp_path, TABLES[case])
    figures = build(drawings(case, run), run)
    assert tuple(figures) == FIGURES[case]
    for figure in figures.values():
        with look():
            figure.draw_without_rendering()
            boxes = [
                (text.get_text(), Text.get_window_extent(text))
                for axes in figure.axes
                for text in shown_texts(axes)
                if text.get_text() and text.get_visible()
            ]
        for place, (name, box) in enumerate(boxes):
            assert figure.bbox.padded(1).contains(*box.min), name
            assert figure.bbox.padded(1).contains(*box.max), name
            for other, second in boxes[place + 1 :]:
                assert not box.padded(-1).overlaps(second.padded(-1)), (name, other)
