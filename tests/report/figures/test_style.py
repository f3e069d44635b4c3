"""A figure is saved as it looks."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from normprobe.report.figures import style
from normprobe.report.figures.style import look, new_figure, wrapped


def test_the_layout_is_solved_once_for_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = style.new_figure(4, 3, "a title")
    figure.subplots(1, 2)
    engine, solved = figure.get_layout_engine(), []
    assert engine is not None
    real = engine.execute
    monkeypatch.setattr(engine, "execute", lambda drawn: (solved.append(None), real(drawn))[1])
    files = style.save(figure, tmp_path / "drawn")
    assert [file.suffix for file in files] == [".png", ".pdf"]
    assert len(solved) == 1


def test_a_figure_is_drawn_once_a_file_and_stays_as_large_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    draw = Figure.draw
    monkeypatch.setattr(Figure, "draw", lambda *its: (drawn.append(its), draw(*its))[1])
    figure = style.new_figure(4, 3, "a title")
    figure.subplots(1, 2)
    dpi = figure.dpi
    style.save(figure, tmp_path / "drawn")
    assert len(drawn) == 2
    assert figure.dpi == dpi


def test_a_title_stands_at_the_edge_of_its_panel() -> None:
    """Matplotlib looks for a better place in every drawing, unless it is told."""
    with style.look():
        figure = style.new_figure(4, 3, "a title")
        axes = figure.subplots()
        axes.xaxis.tick_top()
        title = axes.set_title("a panel")
        style.image_bytes(figure, "png")
    assert title.get_position()[1] == 1


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
