"""What a notebook shows of a run and its figures: rendered here, unlike in ``test_run``."""

import base64
import io
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.figure_cases import TABLES, write
from support.made_runs import run_folder

from normprobe.report.figures.style import CSS_DPI, FILE_DPI
from normprobe.run import Run, load_run

#: What a user types last in a cell, and the kind of picture that must be there.
CELLS = {
    "run": "text/html",
    "run.figures()": "text/html",
    "run.figure('layers')": "image/png",
    "run.figures()['turning']": "image/png",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    record = {"model": "org/model", "data": "mmbench"}
    return run_folder(tmp_path / "run", "layers", record=record, **TABLES["layers"])


def pictures(shown: dict[str, Any], kind: str) -> list[Image.Image]:
    """The pictures among the forms that a notebook was offered."""
    encoded = re.findall(r'base64,([^"]*)"', shown[kind]) if kind == "text/html" else [shown[kind]]
    opened = [Image.open(io.BytesIO(base64.b64decode(data))) for data in encoded]
    assert all(len(picture.convert("RGB").getcolors(1 << 24) or []) > 9 for picture in opened)
    return opened


@pytest.mark.slow
def test_a_notebook_that_is_executed_holds_the_pictures(folder: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    opened = f"from normprobe import load_run; run = load_run({str(folder)!r})"
    cells = [nbformat.v4.new_code_cell(source) for source in (opened, *CELLS)]
    nbclient.NotebookClient(nbformat.v4.new_notebook(cells=cells)).execute()
    for cell, kind in zip(cells[1:], CELLS.values(), strict=True):
        (output,) = cell.outputs  # a result alone: nothing on stdout, nothing on stderr
        assert pictures(output.data, kind), cell.source


def test_all_figures_are_shown_each_behind_its_name(folder: Path) -> None:
    figures = load_run(folder).figures()
    shown = figures._repr_html_()  # type: ignore[attr-defined]
    assert re.findall(r"<code>(.*?)</code>", shown) == list(figures)
    assert len(pictures({"text/html": shown}, "text/html")) == len(figures)


def test_a_figure_is_shown_at_its_size_in_print_and_can_still_be_changed(folder: Path) -> None:
    figure = load_run(folder).figure("layers")
    png, size = figure._repr_png_()  # type: ignore[attr-defined]
    assert size["width"] == CSS_DPI * figure.get_figwidth()
    assert Image.open(io.BytesIO(png)).width == pytest.approx(
        size["width"] * FILE_DPI / CSS_DPI, abs=1
    )
    assert figure.get_layout_engine() is not None


def test_the_figure_of_a_notebook_is_sharp_and_described(tmp_path):
    """More pixels than the 96 an inch that it is shown with."""
    run = Run(write(tmp_path, TABLES["layers"]))
    run.store.record |= {"command": "layers", "model": "org/model", "data": "mmbench"}
    (tag,) = re.findall(r"<img [^>]*>", run._repr_html_())
    data, width = re.search(r"base64,([^\"]*)", tag), re.search(r"width:([0-9.]+)in", tag)
    assert data and width
    image = Image.open(io.BytesIO(base64.b64decode(data[1])))
    assert image.width == pytest.approx(200 * float(width[1]), abs=1)
    assert 'alt="org/model, 56 samples of mmbench"' in tag
    assert "max-width:100%" in tag
