"""A run folder, or all runs below a folder."""

from pathlib import Path

import pytest
from support.made_runs import run_folder

from normprobe.errors import NormprobeError
from normprobe.runs.run_folder import RunFolder, runs_below


def test_a_run_folder_is_itself_whatever_lies_in_it(tmp_path: Path) -> None:
    outer = run_folder(tmp_path / "survey", "survey")
    run_folder(outer / "models" / "one", "interface")
    assert runs_below(outer) == [outer]


def test_runs_are_found_where_commands_put_them(tmp_path: Path) -> None:
    created = {"created": "2026-01-01"}
    late = run_folder(tmp_path / "runs/org--model/a", "layers", record={"created": "2026-02-01"})
    early = run_folder(tmp_path / "runs/specimen/demo/layers", "layers", record=created)
    damaged = tmp_path / "runs/damaged"
    damaged.mkdir()
    (damaged / "run.json").write_text("{")
    # It is named where it is opened: a page without it would look complete.
    assert runs_below(tmp_path / "runs") == [damaged, early, late]


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NormprobeError, match="holds no run folder"):
        runs_below(tmp_path / "empty")


def test_what_is_no_folder_is_refused_where_it_is_opened(tmp_path: Path) -> None:
    (path,) = runs_below(tmp_path / "none")
    with pytest.raises(NormprobeError, match="is not a run folder"):
        RunFolder.open(path)
