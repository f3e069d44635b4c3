"""The registry: every name has a folder, and every folder has what it must offer."""

import inspect
import subprocess
import sys
from importlib.resources import files

import pandas as pd
import pytest

from normprobe.measurements import NAMES, Measurement, measurement, measurements
from normprobe.report.figures.draw import Drawing
from normprobe.runs.run_folder import RunStore

OVER_SAMPLES = [offered.name for offered in measurements() if offered.over_samples]
COMPARED = [offered.name for offered in measurements() if offered.has("compared")]
WITH_FIGURES = [offered.name for offered in measurements() if offered.has("figures")]
RUN = RunStore({})


def parameters(function) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_naming_them_loads_nothing_heavy() -> None:
    code = (
        "import sys; from normprobe.measurements import measurements;"
        "found = [(m.summary, m.needs, m.published, m.has('compared')) for m in measurements()];"
        "heavy = ('torch', 'transformers', 'pandas', 'numpy', 'matplotlib', 'rich');"
        "print(len(found), [name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{len(NAMES)} []"


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_that_of_its_folder(name: str) -> None:
    assert measurement(name).name == name
    assert measurement(name) is measurement(name)


def test_they_stand_in_their_order() -> None:
    assert [offered.name for offered in measurements()] == list(NAMES)
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("name", ["", "inspect", "figures", "no_such_thing", "../runs"])
def test_other_names_are_unknown(name: str) -> None:
    with pytest.raises(KeyError):
        measurement(name)


def test_every_folder_that_declares_a_measurement_is_named() -> None:
    folders = [folder for folder in files("normprobe.measurements").iterdir() if folder.is_dir()]
    declared = {
        folder.name
        for folder in folders
        if (folder / "__init__.py").is_file()
        and "MEASUREMENT =" in (folder / "__init__.py").read_text(encoding="utf-8")
    }
    assert declared == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_folder_has_a_measure_and_shows_a_run(name: str) -> None:
    offered = measurement(name)
    assert offered.module("measure")
    shown = offered.module("shown")
    assert parameters(shown.show) == ["run", "console"]
    if offered.has("words"):
        assert parameters(offered.module("words").verdict) == ["run"]
    for part in ("section", "headline", "lead"):
        if hasattr(shown, part):
            assert parameters(getattr(shown, part)) == ["run"]
    # Without a section its tables are added to the page as they are.
    assert (offered.main_table in offered.shown) == hasattr(shown, "section")


@pytest.mark.parametrize("name", OVER_SAMPLES)
def test_a_measurement_over_samples_has_rows_tables_and_a_help_text(name: str) -> None:
    offered = measurement(name)
    if offered.reads_samples:
        named = ["names"] if offered.intervenes else []
        assert parameters(offered.module("measure").observer) == ["model", "builder", *named]
    else:
        watched = ["watchers"] if offered.watchers else []
        assert parameters(offered.module("measure").observe) == ["model", "inputs", *watched]
    assert parameters(offered.module("measure").rows) == ["seen", "sample_ids"]
    intervals = ["intervals"] if offered.theory else []  # those without which training goes on
    assert parameters(offered.tables) == ["rows", "model", *intervals]
    assert offered.summary
    assert offered.needs is not None
    assert offered.has("norm_map") == offered.maps
    if offered.maps:
        assert parameters(offered.module("norm_map").norm_map) == ["model", "picture"]


def assert_takes_its_tables(drawing: Drawing) -> None:
    first, *between, last = parameters(drawing.draw)
    assert (first, last) == ("title", "ax")
    assert len(between) == len(drawing.tables) + drawing.images + drawing.options


@pytest.mark.parametrize("name", WITH_FIGURES)
def test_figures_name_their_tables_and_take_them(name: str) -> None:
    offered = measurement(name)
    run = RunStore({"compared": "layers"})
    for table, label in (("compare", "run"), ("survey", "model")):
        row = {label: "one", "status": "complete", "disparity_input": 1.0, "inertia_gap": 1.0}
        run.write_table(table, pd.DataFrame([row]))
    drawings = offered.drawings(run)
    assert len({drawing.name for drawing in drawings}) == len(drawings)
    assert {"norm_map", "loudest"} <= {drawing.name for drawing in drawings} or not offered.maps
    assert drawings[0].tables[0] == ("compare" if name == "compare" else offered.main_table)
    for drawing in drawings:
        assert_takes_its_tables(drawing)


@pytest.mark.parametrize("columns", [["run"], ["run", "step"]])
@pytest.mark.parametrize("name", COMPARED)
def test_what_can_be_compared_has_measures_headers_and_figures(
    name: str, columns: list[str]
) -> None:
    compared = measurement(name).module("compared")
    assert parameters(compared.measures) == [measurement(name).main_table, "rows"]
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


def test_a_folder_without_words_page_or_figures_says_nothing() -> None:
    align = measurement("align")
    assert align.verdict(RUN) == ""
    assert align.section(RUN) == []
    assert align.drawings(RUN) == []


def test_the_main_table_has_the_name_of_the_measurement_unless_said() -> None:
    assert measurement("layers").main_table == "layers"
    assert measurement("compare").main_table == "ranking"
    assert Measurement(name="any").main_table == "any"
