"""Work in a process of its own: whatever happens there, the next work is done."""

import logging
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from normprobe.ctrl_c import unheard_by_children
from normprobe.errors import NormprobeError, first_line
from normprobe.known_failures import known_failure

#: What work says to whoever waits for it: anything small that can be pickled.
Send = Callable[[Any], None]

# A server process imports torch once, and each work gets a fork of it.
_SERVES = "forkserver" in multiprocessing.get_all_start_methods()
_IMPORTED_ONCE = ["normprobe.probe"]


class Ended(NamedTuple):
    """What work in a process of its own has left.

    Attributes:
        sent: what it sent, in order.
        problem: why its process ended early, in one line; empty: it did not.
    """

    sent: list[Any]
    problem: str


def done_apart(work: Callable[[Send], None], log: Path, *, timeout: float | None = None) -> Ended:
    """Do work in a process of its own. The process ends when this one does, however it ends."""
    context: Any = multiprocessing.get_context("forkserver" if _SERVES else "spawn")
    if _SERVES:
        context.set_forkserver_preload(_IMPORTED_ONCE)
    received, sent = context.Pipe(duplex=False)
    process = context.Process(target=_do, args=(work, log, sent))
    resource_tracker.ensure_running()  # Python starts it beside the first, and lets Ctrl-C in again
    with unheard_by_children():
        process.start()
    sent.close()
    try:
        process.join(timeout)
        late = process.is_alive()
    finally:
        process.kill()
        process.join()
    if late:
        problem = f"it took longer than {(timeout or 0) / 60:g} minutes"
    else:
        problem = _end_of(process.exitcode) if process.exitcode else ""
    return Ended(list(_all_of(received)), problem)


def failure_of(act: Callable[[], object]) -> NormprobeError | None:
    """Call a function; what is wrong where it fails, whatever it raised. The traceback is printed.
    """
    try:
        act()
    except Exception as error:
        traceback.print_exc()
        unknown = NormprobeError(
            f"{type(error).__name__}: {first_line(error)}", "its log has the traceback"
        )
        return known_failure(error) or unknown
    return None


def _all_of(received: Connection) -> Iterator[Any]:
    """What a process sent before it ended."""
    with suppress(EOFError, OSError):
        while True:
            yield received.recv()


def _end_of(exitcode: int) -> str:
    """Why a process ended that did not say so itself."""
    if exitcode > 0:
        return f"its process ended with exit code {exitcode}"
    name = signal.Signals(-exitcode).name
    full = ", as the system does when memory runs out" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{full}"


def _do(work: Callable[[Send], None], log: Path, sent: Connection) -> None:
    """What the process does."""
    _end_with_parent()
    _write_to(log)
    work(sent.send)


def _end_with_parent() -> None:
    """End when the parent ends, however it ends: the next one may begin at once."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _write_to(file: Path) -> None:
    """Send all that is printed and logged to a file."""
    with file.open("wb") as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("normprobe").setLevel(logging.INFO)
