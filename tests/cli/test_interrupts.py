"""Ctrl-C at each stage: which folder is left behind, and the command that goes on with it."""

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from normprobe.cli.app import main

Run = Callable[..., Result]

BEFORE = ["normprobe.probe.open_data", "normprobe.probe.start_run", "normprobe.probe.note_model"]


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
    typed(monkeypatch, "models")
    with pytest.raises(SystemExit):
        main()
    assert ended == [130]
