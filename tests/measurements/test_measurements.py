"""Every measurement: what it must offer, and that naming it loads nothing."""

import inspect
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pandas as pd
import pytest

from normprobe.measurements import compared_by, measurement, measurements, over_samples
from normprobe.measurements.measurement import Measurement
from normprobe.report.figures.draw import Drawing
from normprobe.report.ranking import measures_table
from normprobe.report.ratio_words import Estimate
from normprobe.runs.run_folder import RunStore

NAMES = [*measurements()]
COMPARED = [name for name, offered in measurements().items() if offered.compared]
WITH_FIGURES = [
    name
    for name, offered in measurements().items()
    if offered.figures or hasattr(offered.shown, "drawings")
]
RUN = RunStore({})


def parameters(function) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_naming_them_loads_nothing_heavy() -> None:
    code = (
        "import sys; from normprobe.measurements import measurements;"
        "found = [(m.name, m.needs, m.published) for m in measurements().values()];"
        "heavy = ('torch', 'transformers', 'pandas', 'numpy', 'matplotlib', 'rich');"
        "print(len(found), [name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{len(NAMES)} []"


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_that_of_its_folder(name: str) -> None:
    assert measurement(name).name == name
    assert type(measurement(name)).__module__.rpartition(".")[2] == name


@pytest.mark.parametrize("name", ["", "inspect", "figures", "no_such_thing", "../runs"])
def test_other_names_are_unknown(name: str) -> None:
    with pytest.raises(KeyError):
        measurement(name)


def test_every_folder_of_the_core_that_has_one_is_named() -> None:
    inits = Path(str(files("normprobe.measurements"))).rglob("*/__init__.py")
    declared = {
        init.parent.name for init in inits if "Measurement):" in init.read_text(encoding="utf-8")
    }
    core = {n for n in NAMES if type(measurement(n)).__module__.startswith("normprobe.meas")}
    assert declared == core


@pytest.mark.parametrize("name", NAMES)
def test_every_measurement_shows_a_run(name: str) -> None:
    offered = measurement(name)
    offered.require_whole()
    shown = offered.shown
    assert shown is not None or type(offered).show is not Measurement.show
    assert parameters((shown or offered).show) == ["run", "console"]
    if offered.words is not None:
        assert parameters(offered.words.verdict) == ["run"]
    for part in ("section", "lead", "verdict", "drawings"):
        if hasattr(shown, part):
            assert [name.lstrip("_") for name in parameters(getattr(shown, part))] == ["run"]
    # Without a section its tables are added to the page as they are.
    assert (offered.main_table in offered.section_tables) == hasattr(shown, "section")


@pytest.mark.parametrize("name", over_samples())
def test_a_measurement_over_samples_has_a_help_text(name: str) -> None:
    offered = over_samples()[name]
    assert offered.summary
    assert offered.needs is not None
    assert offered.options <= {"map", "also", "by", "do", "answer", "theory", "tower"}


def assert_takes_its_tables(drawing: Drawing) -> None:
    first, *between, last = parameters(drawing.draw)
    assert (first, last) == ("title", "ax")
    assert len(between) == len(drawing.tables) + drawing.images + drawing.options


@pytest.mark.parametrize("name", WITH_FIGURES)
def test_figures_name_their_tables_and_take_them(name: str) -> None:
    offered = measurement(name)
    run = RunStore({"compared": "layers"})
    numbers = {"disparity_input": Estimate(1.0), "inertia_gap": Estimate(1.0)}
    for table, label in (("compare", "run"), ("survey", "model")):
        run.write_table(table, measures_table(pd.DataFrame({label: ["one"]}), [numbers]))
    run.write_table("models", pd.DataFrame({"model": ["one"], "status": "complete"}))
    drawings = offered.drawings(run)
    names = {drawing.name for drawing in drawings}
    assert len(names) == len(drawings)
    lays_maps = "map" in getattr(offered, "options", ())
    assert {"norm_map", "loudest"} <= names or not lays_maps
    assert drawings[0].tables[0] == ("compare" if name == "compare" else offered.main_table)
    for drawing in drawings:
        assert_takes_its_tables(drawing)


@pytest.mark.parametrize("columns", [["run"], ["run", "step"]])
@pytest.mark.parametrize("name", COMPARED)
def test_what_can_be_compared_has_measures_headers_and_figures(
    name: str, columns: list[str]
) -> None:
    compared = compared_by(name)
    table, rows = parameters(compared.measures)
    assert (table, rows.lstrip("_")) == (measurement(name).main_table, "rows")
    assert isinstance(compared.ROW_COLUMNS, tuple)
    assert compared.COLUMNS
    assert all(isinstance(note, str) for note in compared.NOTES)
    run = RunStore({"compared": name})
    run.write_table("compare", pd.DataFrame(columns=columns))
    drawings = measurement("compare").drawings(run)
    # The measurement itself may put more tables of all runs side by side.
    beside = [("heatmaps",)] if name == "attention" else []
    assert [drawing.tables for drawing in drawings if drawing.tables != ("compare",)] == beside
    assert drawings[0].tables == ("compare",)
    for drawing in drawings:
        assert_takes_its_tables(drawing)


def test_what_cannot_be_compared_says_so() -> None:
    with pytest.raises(LookupError, match="runs of align are not compared"):
        compared_by("align")


def test_a_folder_without_words_page_or_figures_says_nothing() -> None:
    align = measurement("align")
    assert not align.verdict_of_run(RUN)
    assert align.section(RUN) == []
    assert align.drawings(RUN) == []


def test_the_main_table_has_the_name_of_the_measurement_unless_said() -> None:
    assert measurement("layers").main_table == "layers"
    assert measurement("compare").main_table == "ranking"
    assert Measurement("any").main_table == "any"
