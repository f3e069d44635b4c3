"""A command in a process of its own: what is wrong with it stops no other."""

import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from runpy import run_module

from normprobe.errors import NormprobeError
from normprobe.reproduction.jobs import is_finished
from normprobe.runs.apart import Send, done_apart, failure_of


def run_apart(words: Sequence[str], folder: Path) -> NormprobeError | None:
    """Run a command in a process of its own.

    Returns:
        Why there is no complete run; None: there is.
    """
    log = folder.with_name(f"{folder.name}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    ended = done_apart(partial(_type, words), log)
    if ended.sent:
        failure: NormprobeError = ended.sent[0]
        return failure
    if ended.problem or not is_finished(folder):
        problem = ended.problem or "it ended before its run was complete"
        return NormprobeError(f"normprobe {shlex.join(words)}: {problem}", f"its log is {log}")
    return None


def _type(words: Sequence[str], send: Send) -> None:
    """Do what a shell does with the words, but send what is wrong in place of showing it."""
    os.environ["NORMPROBE_DEBUG"] = "1"
    sys.argv = ["normprobe", *words]
    if failure := failure_of(partial(run_module, "normprobe", run_name="__main__")):
        send(failure)
