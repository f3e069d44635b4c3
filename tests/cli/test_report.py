"""``normprobe report``: one file, from run folders alone."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import made_tables
from support.made_runs import run_folder
from typer.testing import Result


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "one", "layers", layers=made_tables.layers())


def test_the_command_writes_one_file_and_keeps_another(
    run: Callable[..., Result], layers: Path, tmp_path: Path
) -> None:
    output = tmp_path / "page.html"
    arguments = ["report", layers, "-o", output]
    first = run(*arguments)
    assert first.exit_code == 0, first.output
    assert first.stdout == f"{output}\n"
    assert output.read_text().startswith("<!doctype html>")
    again = run(*arguments)
    assert again.exit_code == 1
    assert "--overwrite" in again.stderr
    assert run(*arguments, "--overwrite").exit_code == 0
    no_run = run("report", tmp_path / "none", "-o", f"{output}.new")
    assert no_run.exit_code == 1
    assert "is not a run folder" in no_run.stderr


def test_a_report_loads_no_torch(layers: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from normprobe.cli.app import app;"
        f"CliRunner().invoke(app, ['report', {str(layers)!r}, '-o', {str(tmp_path / 'p.html')!r}]);"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert (tmp_path / "p.html").is_file()
