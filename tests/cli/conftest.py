"""Running commands as a user does, in this process or in one of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from normprobe.cli.app import app


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NORMPROBE_DEBUG", raising=False)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def spawn(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a command as a process of its own, in an empty working folder."""

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "normprobe", *arguments],
            cwd=tmp_path,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def assert_two_lines(result: Result, *words: str) -> None:
    """A known failure: exit code 1, what is wrong, what to do, no traceback.

    What the command reads may have been said before.
    """
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    lines = lines[lines[0].startswith(("reads ", "fetches ")) :]
    assert len(lines) == 2, result.stderr
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in result.stderr, result.stderr
