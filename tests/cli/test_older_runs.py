"""Run folders whose tables have another form: an earlier version wrote a column a number."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import assert_two_lines
from support import made_tables
from support.made_runs import run_folder
from typer.testing import Result

from normprobe.schema import SCHEMA_VERSION

Run = Callable[..., Result]


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A complete run of schema 4, with its table as it was written then."""
    folder = run_folder(tmp_path / "older", "layers", record={"schema_version": 4})
    made_tables.layers().to_csv(folder / "layers.csv", index=False)
    return folder


def held(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.mark.parametrize(
    "words",
    [
        "show older",
        "show older --format csv",
        "show older --table layers",
        "compare older newer -o out",
        "compare newer older -o out",
        "report older -o page.html",
        "paper figure3 --from older",
        "verify older",
        "layers -n 2 -o older --resume",
    ],
)
def test_they_are_refused_in_two_lines_and_stay_as_they_are(
    words: str, run: Run, older: Path
) -> None:
    run_folder(older.parent / "newer", "layers", layers=made_tables.layers())
    before = held(older)
    told = f"expected schema version {SCHEMA_VERSION}, received 4"
    assert_two_lines(run(*words.split()), "older have another form", told, "measure again")
    assert held(older) == before
    assert not Path("out").exists() and not Path("page.html").exists()


def test_an_unfinished_one_is_not_gone_on_with(run: Run, older: Path) -> None:
    record = json.loads((older / "run.json").read_text())
    (older / "run.json").write_text(json.dumps({**record, "status": "partial"}))
    assert_two_lines(run("layers", "-n", 2, "-o", older, "--resume"), "another form")


def test_it_may_be_measured_again_in_its_place(run: Run, older: Path) -> None:
    result = run("layers", "-n", 2, "-o", older, "--overwrite")
    assert result.exit_code == 0, result.output
    assert run("show", older).exit_code == 0


def test_a_json_reader_gets_the_failure_as_an_object(run: Run, older: Path) -> None:
    result = run("show", older, "--format", "json")
    assert result.exit_code == 1
    assert "another form" in json.loads(result.stdout)["error"]["problem"]
