"""A title is no wider than its figure."""

import pytest

from normprobe.report.figures.style import look, new_figure, wrapped


@pytest.mark.parametrize("width", [3.5, 7.0])
def test_a_long_title_fits(width: float) -> None:
    text = "Appendix G: attention of text to the image\n" + "what is seen here, " * 12
    with look():
        drawing = new_figure(width, 3, wrapped(text, width))
        drawing.draw_without_rendering()
        (title,) = drawing.texts
        left, _, right, _ = title.get_window_extent().extents
    assert left >= 0
    assert right <= drawing.bbox.width


def test_lines_stay_lines() -> None:
    assert wrapped("one\ntwo", 7.0) == "one\ntwo"
