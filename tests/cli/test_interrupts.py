"""Ctrl-C at each stage: which folder is left behind, and the command that goes on with it."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import typer
from typer.testing import Result

from normprobe.cli import console
from normprobe.cli.app import main
from normprobe.cli.grouping import Display
from normprobe.runs.processes import Interrupted

Run = Callable[..., Result]

ROOT = Path(__file__).parents[2]
BEFORE = [f"normprobe.pipeline.{name}" for name in ("open_data", "start_run", "note_model")]


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def typed(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[str, ...]:
    """Words of a command, as they would stand on the command line."""
    monkeypatch.setattr(sys, "argv", ["normprobe", *words])
    return words


@pytest.mark.parametrize("stage", BEFORE)
def test_before_anything_is_measured_nothing_is_left(
    stage: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, interrupt)
    result = run(*typed(monkeypatch, "layers", "-n", "2", "-o", "out"))
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "interrupted"
    assert not (tmp_path / "out/run.json").exists()


@pytest.mark.parametrize("stage", BEFORE)
def test_before_anything_is_measured_an_older_run_is_left_as_it_was(
    stage: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("layers", "-n", "1", "-o", "out").exit_code == 0
    before = {file: file.read_bytes() for file in Path("out").rglob("*") if file.is_file()}
    monkeypatch.setattr(stage, interrupt)
    result = run(*typed(monkeypatch, "layers", "-n", "2", "-o", "out", "--overwrite"))
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "interrupted"
    assert {f: f.read_bytes() for f in Path("out").rglob("*") if f.is_file()} == before


@pytest.mark.parametrize(
    ("stage", "output"),
    [
        ("normprobe.runs.collecting.note_confidence", ["-o", "my out"]),
        ("normprobe.runs.collecting.note_confidence", []),
        ("normprobe.run.draw", ["--output=other", "--overwrite"]),
    ],
)
def test_behind_that_the_folder_is_named_and_the_command_that_goes_on(
    stage: str, output: list[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(stage, interrupt)
        result = run(*typed(patch, "layers", "specimen", "-n", "2", *output))
    assert result.exit_code == 130
    told, command = result.stderr.splitlines()[-2:]
    folder = Path(told.removeprefix("interrupted: what was measured is in "))
    assert json.loads((folder / "run.json").read_text())["status"] == "partial"
    program, *words = shlex.split(command.partition(": ")[2])
    assert program == "normprobe"
    gone_on = run(*words)
    assert gone_on.exit_code == 0, gone_on.output
    assert json.loads((folder / "run.json").read_text())["status"] == "complete"


def test_of_several_processes_no_single_command_is_said_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(typer.Exit), console.reported(Display(), resumes=True):
        raise Interrupted(tmp_path / "my out")
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith(f"start all processes as before, with -o '{tmp_path / 'my out'}' --resume")


def test_a_command_without_resume_leaves_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("normprobe.run.draw", interrupt)
    result = run(*typed(monkeypatch, "embeddings", "-o", "out"))
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "interrupted"
    assert not (tmp_path / "out").exists()


def test_the_process_is_not_taken_down_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr("pandas.read_csv", interrupt)
    typed(monkeypatch, "inspect")
    with pytest.raises(SystemExit):
        main()
    assert ended == [130]


def entries(folder: Path) -> list[list[str]]:
    """Both ways to start a command; the script is what installers write."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["normprobe"].partition(":")
    script = folder / "normprobe"
    script.write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    return [[sys.executable, "-m", "normprobe"], [sys.executable, str(script)]]


def python_raises(process: subprocess.Popen[str]) -> bool:
    """Whether a process catches Ctrl-C, as Python does from soon after its start."""
    status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    (caught,) = (line.split()[1] for line in status if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signal.SIGINT - 1) & 1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads what a process does with signals")
@pytest.mark.parametrize(
    "delays",
    [
        [0.0, 0.2],
        pytest.param([0.02, 0.05, 0.1, 0.15, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0], marks=pytest.mark.slow),
    ],
)
def test_from_its_first_line_on_a_command_ends_without_a_traceback(
    delays: list[float], tmp_path: Path
) -> None:
    """Before that, it is Python that starts: the kernel says when it has made way."""

    def start(entry: list[str]) -> subprocess.Popen[str]:
        words = [*entry, "layers", "-n", "1", "-o", "out"]
        pipe = subprocess.PIPE
        # Tests that a shell runs in the background ignore Ctrl-C; a user's command does not.
        heard = signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            return subprocess.Popen(words, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True)
        finally:
            signal.signal(signal.SIGINT, heard)

    for delay, entry in product(delays, entries(tmp_path)):
        process = start(entry)
        latest = time.monotonic() + 5
        for expected in (True, False):
            while python_raises(process) is not expected and time.monotonic() < latest:
                time.sleep(0.001)
        first_line_has_run = not python_raises(process)
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert first_line_has_run
        assert "Traceback" not in said
        assert process.returncode in (130, -signal.SIGINT)
