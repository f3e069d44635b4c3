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
    if offered.has("shown"):
        assert parameters(offered.module("shown").show) == ["run", "console"]


@pytest.mark.parametrize("name", NAMES)
def test_words_and_what_is_shown_take_a_run(name: str) -> None:
    offered = measurement(name)
    if offered.has("words"):
        assert parameters(offered.module("words").verdict) == ["run"]
    shown = offered.module("shown") if offered.has("shown") else None
    taken = {
        "section": ["run"],
        "headline": ["run"],
        "lead": ["run"],
        "readable": ["name", "table"],
    }
    for function, expected in taken.items():
        if hasattr(shown, function):
            assert parameters(getattr(shown, function)) == expected
    if hasattr(shown, "section"):
        assert offered.main_table in offered.shown
    else:
        assert not offered.shown  # its tables are added to the page as they are


@pytest.mark.parametrize("name", OVER_SAMPLES)
def test_a_measurement_over_samples_has_rows_tables_and_a_help_text(name: str) -> None:
    offered = measurement(name)
    if offered.reads_samples:
        assert parameters(offered.module("measure").observer) == ["model", "builder"]
    else:
        watched = ["watchers"] if offered.watchers else []
        assert parameters(offered.module("measure").observe) == ["model", "inputs", *watched]
    assert parameters(offered.module("measure").rows) == ["seen", "sample_ids"]
    assert parameters(offered.tables) == ["rows", "model"]
    assert offered.summary
    assert offered.needs is not None
    assert offered.has("norm_map") == offered.maps
    if offered.maps:
        assert parameters(offered.module("norm_map").norm_map) == ["model", "picture"]


def assert_drawn(drawings: list[Drawing], main: str) -> None:
    assert drawings[0].tables[0] == main
    assert len({drawing.name for drawing in drawings}) == len(drawings)
    for drawing in drawings:
        more = {"images": drawing.images, "options": drawing.options}
        taken = parameters(drawing.draw)
        assert (taken[0], taken[-1]) == ("title", "ax")
        assert len(taken) == 2 + len(drawing.tables) + sum(more.values()), drawing.name


@pytest.mark.parametrize("name", WITH_FIGURES)
def test_figures_take_their_tables(name: str) -> None:
    offered = measurement(name)
    assert_drawn(offered.drawings(RUN), offered.main_table)
    maps = [drawing.name for drawing in offered.drawings(RUN)][-2:] == ["norm_map", "loudest"]
    assert maps == offered.maps


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
    assert_drawn(measurement("compare").drawings(run), "compare")


def test_a_folder_without_words_page_or_figures_says_nothing() -> None:
    align = measurement("align")
    assert align.verdict(RUN) == ""
    assert align.section(RUN) == []
    assert align.drawings(RUN) == []
    assert (align.headline(RUN), align.lead(RUN)) == ("", None)


def test_the_main_table_has_the_name_of_the_measurement_unless_said() -> None:
    assert measurement("layers").main_table == "layers"
    assert measurement("compare").main_table == "ranking"
    assert Measurement(name="any").main_table == "any"
