"""The processes of a run: those that share it, work apart from this one, and Ctrl-C."""

import logging
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from normprobe.console_state import sigint_blocked
from normprobe.errors import NormprobeError, first_line
from normprobe.failures import known_failure
from normprobe.options import AUTO, BALANCED, TENSOR_PARALLEL
from normprobe.runs.run_folder import RunFolder, RunStore

# The others may wait for a process whose samples are longer, or that went down to batches of one.
_PATIENCE = timedelta(days=1)


@dataclass(frozen=True)
class Processes:
    """The processes of a run, seen from one of them."""

    state: Any  # accelerate's PartialState
    device: str  # what --device means for this one

    def shared(self, start: Callable[[], RunStore]) -> RunStore:
        """Let the main process start a run, and open it in the others."""
        from accelerate.utils import broadcast_object_list

        if self.state.num_processes == 1:
            return start()
        failure, run = None, None
        if self.state.is_main_process:
            try:
                run = start()
            except NormprobeError as error:
                failure = error
            if run is not None and run.path is None:
                failure = NormprobeError(
                    f"{self.state.num_processes} processes need a folder to share their rows in",
                    "pass output=FOLDER",
                )
            if isinstance(run, RunFolder):
                run.replace_older()  # the others open the new one
        with meeting():
            (path,) = broadcast_object_list([run and run.path and run.path.resolve()])
        if failure is not None:
            raise failure
        if path is None:
            raise SystemExit(1)
        return run or RunFolder.open(path, writer=self.state.process_index)


@contextmanager
def meeting() -> Iterator[None]:
    """Where the processes of a run wait for each other."""
    try:
        yield
    except RuntimeError as error:  # gloo has no class of its own; that of NCCL is a RuntimeError
        raise NormprobeError(
            f"the processes of this run have lost each other: {first_line(error)}",
            "see what the one that ended says; --resume goes on from what is measured",
        ) from error


def join_processes(device: str) -> Processes:
    """Meet the other processes of the run; on its own, a process is the main one."""
    from accelerate import PartialState

    from normprobe.model.load.loading import pick_device

    # Left to itself, accelerate lets processes on a machine without a GPU know nothing of the rest.
    cpu = pick_device(AUTO if device in (BALANCED, TENSOR_PARALLEL) else device).type == "cpu"
    with meeting():
        state = PartialState(cpu=cpu, timeout=_PATIENCE)
    if state.num_processes == 1:
        return Processes(state, device)
    if device not in (AUTO, "cpu", TENSOR_PARALLEL):
        raise NormprobeError(
            f"{state.num_processes} processes cannot all use --device {device}",
            "start one process, or leave it out: each process takes a GPU of its own",
        )
    return Processes(state, str(state.device))


#: What work says to whoever waits for it: anything small that can be pickled.
Send = Callable[[Any], None]

# A server process imports torch once, and each work gets a fork of it.
_SERVES = "forkserver" in multiprocessing.get_all_start_methods()
_IMPORTED_ONCE = ["normprobe.probe"]


class Ended(NamedTuple):
    """What work in a process of its own has left."""

    sent: list[Any]  # what it sent, in order
    problem: str  # why its process ended early, in one line; empty: it did not


def done_apart(work: Callable[[Send], None], log: Path, *, timeout: float | None = None) -> Ended:
    """Do work in a process of its own. The process ends when this one does, however it ends."""
    context: Any = multiprocessing.get_context("forkserver" if _SERVES else "spawn")
    if _SERVES:
        context.set_forkserver_preload(_IMPORTED_ONCE)
    received, sent = context.Pipe(duplex=False)
    process = context.Process(target=_do, args=(work, log, sent))
    resource_tracker.ensure_running()  # Python starts it beside the first, and lets Ctrl-C in again
    with sigint_blocked():
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
    """Call a function; what is wrong where it fails. The traceback is printed."""
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


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with the run folder that ``--resume`` goes on with."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.folder = folder


@contextmanager
def naming_the_run(run: RunStore) -> Iterator[None]:
    """Let Ctrl-C inside the block tell which run folder it leaves behind, open to others."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if not isinstance(run, RunFolder) or run.replaces or not run.path.is_dir():
            raise
        run.unlock()  # the interpreter may live on and resume it
        raise Interrupted(run.path) from interrupt
