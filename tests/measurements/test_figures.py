"""Every figure of every measurement, built once: its texts, its looks, its axes, its files."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text
from support.figure_cases import FIGURES, TABLES, drawings, write
from support.figure_references import (
    REFERENCES,
    TOLERANCE,
    difference,
    drawn,
    grey,
    reference,
)

from normprobe.errors import NormprobeError
from normprobe.report.figures.draw import draw, figure_of
from normprobe.report.figures.style import look
from normprobe.run import Run
from normprobe.runs.run_folder import RunFolder

FILES = {"grounding", "embeddings"}  # cases whose files are made in the fast tests too


@dataclass
class Built:
    """The figures of a case."""

    case: str
    run: RunFolder
    figures: dict[str, Figure]


@pytest.fixture(scope="module", params=FIGURES)
def built(request: pytest.FixtureRequest) -> Iterator[Built]:
    with TemporaryDirectory() as folder:
        figures = drawn(request.param, Path(folder))
        yield Built(request.param, RunFolder(Path(folder), {}), figures)


def test_they_look_as_when_somebody_looked_at_them(built: Built) -> None:
    """Comes first: a figure keeps the layout of its first rendering."""
    settings = dict(matplotlib.rcParams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a missing glyph or a failed layout is a warning
        found = {
            name: difference(grey(figure), reference(built.case, name))
            for name, figure in built.figures.items()
        }
    assert dict(matplotlib.rcParams) == settings
    assert {name: far for name, far in found.items() if far > TOLERANCE} == {}


def shown_texts(axes: Axes) -> Iterator[Text]:
    """The texts of a panel, without those beyond the ends of its axes."""
    yield from axes.texts
    yield from (axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label)
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        for tick in axis.get_major_ticks():
            if min(low, high) <= tick.get_loc() <= max(low, high):
                yield tick.label1


def test_texts_stay_apart_and_inside(built: Built) -> None:
    assert tuple(built.figures) == FIGURES[built.case]
    for figure in built.figures.values():
        with look():
            figure.draw_without_rendering()
            boxes = [
                (text.get_text(), Text.get_window_extent(text))  # without leader lines
                for axes in figure.axes
                for text in shown_texts(axes)
                if text.get_text() and text.get_visible()
            ]
        for place, (name, box) in enumerate(boxes):
            assert figure.bbox.padded(2).contains(*box.min), name
            assert figure.bbox.padded(2).contains(*box.max), name
            for other, second in boxes[place + 1 :]:
                assert not box.padded(-1).overlaps(second.padded(-1)), (name, other)


def test_every_reference_has_its_figure() -> None:
    names = {f"{case}-{name}.png" for case, figures in FIGURES.items() for name in figures}
    assert {file.name for file in REFERENCES.iterdir()} == names
    assert sum(file.stat().st_size for file in REFERENCES.iterdir()) < 1_000_000


def labels(figure: Figure) -> Iterator[Text]:
    """Titles, axis labels and legend entries: what a figure cannot be read without."""
    for axes in figure.axes:
        yield from (axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label)
    for legend in (*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))):
        yield from legend.get_texts()
    yield figure._suptitle


def test_a_label_that_is_missing_is_seen(tmp_path: Path) -> None:
    figure = drawn("interface", tmp_path)["interface"]
    whole = reference("interface", "interface")
    texts = [text for text in labels(figure) if text.get_text()]
    assert len(texts) >= 2
    for text in texts:
        text.set_visible(False)
        assert difference(grey(figure), whole) > 2 * TOLERANCE, text
        text.set_visible(True)


@pytest.mark.parametrize(
    "case",
    [case if case in FILES else pytest.param(case, marks=pytest.mark.slow) for case in FIGURES],
)
def test_a_csv_file_alone_gives_its_files(case: str, tmp_path: Path) -> None:
    run = write(tmp_path, TABLES[case])
    files = draw(drawings(case, run), run)
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


# --- in axes of a caller ------------------------------------------------------------------------


def legend_entries(figure: Figure) -> set[str]:
    """What all its legends name."""
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    return {text.get_text() for legend in legends if legend for text in legend.get_texts()}


def artists(axes: Axes) -> tuple[Any, ...]:
    """What is drawn in a panel, and around it."""
    kinds = axes.lines, axes.collections, axes.patches, axes.images, axes.texts
    return axes.get_title("left"), axes.get_xlabel(), *map(len, kinds)


def test_they_are_drawn_into_the_axes_of_a_caller(built: Built) -> None:
    for drawing in drawings(built.case, built.run):
        if (name := drawing.name) not in built.figures:
            continue
        with pytest.raises(NormprobeError, match="received axes for 0") as refused:
            figure_of(drawing, built.run, [])
        count = int(refused.value.problem.split("has ")[1].split()[0])
        theirs = Figure(figsize=(3, 2 * count))
        axes = theirs.subplots(count, squeeze=False)
        settings = dict(matplotlib.rcParams)
        assert figure_of(drawing, built.run, axes) is theirs
        assert dict(matplotlib.rcParams) == settings
        own = built.figures[name]
        assert theirs.get_suptitle() == "" != own.get_suptitle()
        assert legend_entries(theirs) == legend_entries(own)
        for theirs_panel, own_panel in zip(axes.flat, own.axes, strict=False):
            assert artists(theirs_panel) == artists(own_panel)


def test_a_single_axes_needs_no_list_and_too_many_are_refused(tmp_path: Path) -> None:
    run = Run(write(tmp_path, TABLES["interface"]))
    run.store.record["command"] = "interface"
    theirs = Figure()
    axes = theirs.subplots()
    assert run.figure("interface", ax=axes) is theirs
    assert axes.lines
    with pytest.raises(NormprobeError, match="has 1 panels; received axes for 2"):
        run.figure("interface", ax=np.array([axes, axes]))


def test_a_figure_that_there_is_not_is_named(tmp_path: Path) -> None:
    run = Run(write(tmp_path, TABLES["layers"]))
    run.store.record["command"] = "layers"
    with pytest.raises(NormprobeError, match="a run of layers has no figure bars") as refused:
        run.figure("bars")
    assert "turning" in refused.value.remedy
