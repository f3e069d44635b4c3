"""A command in a process of its own: its run, or why there is none."""

import os
import signal
import sys
from pathlib import Path

import pytest

from normprobe.extensions.paper import reproduction
from normprobe.extensions.paper.reproduction import is_finished
from normprobe.runs.processes import Ended


def test_a_command_leaves_its_run_and_its_words(tmp_path: Path) -> None:
    folder = tmp_path / "runs/embeddings"
    arguments, debug = list(sys.argv), os.environ.get("NORMPROBE_DEBUG")
    words = ("embeddings", "specimen", "-o", str(folder))
    assert reproduction.run_apart(words, folder) is None
    assert is_finished(folder)
    assert "L2 norm of embedding rows" in folder.with_name("embeddings.log").read_text()
    assert (sys.argv, os.environ.get("NORMPROBE_DEBUG")) == (arguments, debug)
    again = reproduction.run_apart(words, folder)
    assert again is not None
    assert "exists" in again.problem
    assert "Traceback" in folder.with_name("embeddings.log").read_text()


def test_words_that_are_no_command_are_a_failure(tmp_path: Path) -> None:
    failure = reproduction.run_apart(("nothing",), tmp_path / "run")
    assert failure is not None
    assert "its process ended with exit code 2" in failure.problem
    assert failure.remedy == f"its log is {tmp_path / 'run.log'}"
    assert "No such command" in (tmp_path / "run.log").read_text()


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (f"its process was ended by {signal.SIGKILL.name}", "ended by SIGKILL"),
        ("", "it ended before its run was complete"),
    ],
)
def test_a_process_that_ends_early_leaves_a_failure(
    problem: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduction, "done_apart", lambda *_: Ended([], problem))
    failure = reproduction.run_apart(("layers", "org/a"), tmp_path / "run")
    assert failure is not None
    assert said in failure.problem
    assert failure.problem.startswith("normprobe layers org/a: ")
