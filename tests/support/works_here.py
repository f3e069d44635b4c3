"""Commands of ``paper --run`` in this process: no process begins, and figures stay unrendered."""

import contextvars
import io
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

from normprobe.extensions.paper import reproduction
from normprobe.runs.processes import Ended, Send


def work_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is to be done in a process of its own be done in this one."""
    monkeypatch.setattr(reproduction, "done_apart", _done_here)


def _done_here(work: Callable[[Send], None], log: Path) -> Ended:
    sent: list[object] = []
    printed = io.StringIO()
    with (
        patch.dict(os.environ),
        patch.object(sys, "argv", sys.argv),
        redirect_stdout(printed),
        redirect_stderr(printed),
    ):
        problem = contextvars.Context().run(_exit_of, lambda: work(sent.append))
    if log != Path(os.devnull):
        log.write_text(printed.getvalue())
    return Ended(sent, problem)


def _exit_of(act: Callable[[], None]) -> str:
    """What a process says that ends so."""
    try:
        act()
    except SystemExit as end:
        return f"its process ended with exit code {end.code}" if end.code else ""
    return ""
