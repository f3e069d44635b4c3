"""Drawing a run: which figures, the same bytes, and what it must not disturb."""

import re
import subprocess
import sys

import pytest
from support import made_tables
from support.documents import DOCS, ROOT
from support.figure_cases import FIGURES, TABLES, drawings, write
from support.flat import tidied

from normprobe.errors import NormprobeError
from normprobe.measurements import measurement
from normprobe.report.figures.draw import build, draw
from normprobe.runs.run_folder import RunFolder, RunStore

LAYERS = TABLES["layers"]["layers"]


def test_figures_of_absent_or_empty_tables_are_left_out(tmp_path):
    run = write(tmp_path, {"layers": LAYERS})
    assert set(build(drawings("layers", run), run)) == {"layers", "turning"}
    write(tmp_path, {"theory": made_tables.theory().iloc[:0]})
    run = write(tmp_path, {"assumptions": TABLES["layers"]["assumptions"].iloc[:0]})
    assert set(build(drawings("layers", run), run)) == {"layers", "turning"}


def test_a_run_in_memory_has_the_same_figures():
    run = RunStore({"command": "layers"})
    for name, table in TABLES["layers"].items():
        run.write_table(name, tidied(name, table))
    figures = build(measurement("layers").drawings(run), run)
    assert list(figures) == [*FIGURES["layers"]]
    assert figures["layers"].get_suptitle() == "layers, 56 samples"


def test_the_same_tables_give_the_same_bytes(tmp_path):
    run = write(tmp_path, {"interface": TABLES["interface"]["interface"].head(2)})
    first = [file.read_bytes() for file in draw(drawings("interface", run), run)]
    again = RunFolder(tmp_path, {})
    assert [file.read_bytes() for file in draw(drawings("interface", again), again)] == first


def test_a_measurement_without_figures_draws_none(tmp_path):
    run = write(tmp_path, {"layers": LAYERS})
    assert draw(measurement("align").drawings(run), run) == []
    assert not (tmp_path / "plots").exists()


def test_a_missing_table_is_a_known_failure(tmp_path):
    run = RunFolder(tmp_path, {})
    with pytest.raises(NormprobeError, match=r"holds no layers\.csv"):
        draw(drawings("layers", run), run)


def test_an_empty_table_is_a_known_failure(tmp_path):
    run = write(tmp_path, {"layers": LAYERS.iloc[:0]})
    with pytest.raises(NormprobeError, match="holds no rows") as caught:
        draw(drawings("layers", run), run)
    assert str(tmp_path) in caught.value.problem
    memory = RunStore({"command": "layers"})
    memory.write_table("layers", tidied("layers", LAYERS).iloc[:0])
    with pytest.raises(NormprobeError, match=r"layers\.csv in the run of layers holds no rows"):
        build(drawings("layers", run), memory)


def test_listing_figures_and_drawing_leave_pyplot_alone(tmp_path):
    write(tmp_path, {"interface": TABLES["interface"]["interface"].head(2)})
    code = (
        "import sys, pathlib; from normprobe.measurements import measurement, measurements;"
        "from normprobe.report.figures.draw import draw;"
        "from normprobe.runs.run_folder import RunFolder;"
        "assert 'layers' in measurements();"
        "assert 'matplotlib' not in sys.modules;"
        "run = RunFolder(pathlib.Path(sys.argv[1]), {});"
        "assert draw(measurement('interface').drawings(run), run);"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_every_figure_stands_in_the_gallery():
    gallery = (DOCS / "gallery/figures.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### (\w+)$", gallery, re.MULTILINE)
    code = "".join(file.read_text("utf-8") for file in (ROOT / "normprobe").rglob("*.py"))
    assert set(headings) == set(re.findall(r'(?:Drawing|_drawing|_declared)\(\s*"(\w+)"', code))
    assert set(headings) > {name for figures in FIGURES.values() for name in figures}
    for name in headings:  # and the line, or the file, below it
        assert re.search(rf'figure\("{name}"\)|/plots/{name}\.png', gallery), name
