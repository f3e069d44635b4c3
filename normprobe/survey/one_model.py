"""One model of a survey, in a process of its own: whatever happens there, the next is measured."""

import json
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normprobe.errors import first_line
from normprobe.measurements import measurement
from normprobe.runs.atomic import write_by_rename
from normprobe.runs.json_text import json_bytes
from normprobe.survey.model_list import ListedModel

if TYPE_CHECKING:
    from normprobe.probe import Probe

#: What a measured model leaves in its folder, beside its runs: a model without it was not finished.
OUTCOME = "outcome.json"
_LOG = "log.txt"

# A server process imports torch once, and each model gets a fork of it.
_SERVES = "forkserver" in multiprocessing.get_all_start_methods()


@dataclass(frozen=True)
class How:
    """How each model is measured.

    Attributes:
        measurements: in this order; the first loads what the others read.
        data: what ``--data`` takes.
        draw: which samples of it: ``prompt``, ``limit``, ``seed`` and ``skip_bad`` of ``measure``.
        batching: how many at once: ``batch_size`` and ``workers`` of ``Probe.measure``.
        loading: what ``Probe`` takes beside the model, its revision and ``range_reads``.
        range_reads: fetch the needed bytes of a hub model, not whole files.
        timeout: seconds that a model may take; None: no limit.
    """

    measurements: tuple[str, ...]
    data: str
    draw: Mapping[str, Any]
    batching: Mapping[str, Any]
    loading: Mapping[str, Any]
    range_reads: bool
    timeout: float | None


def measured_apart(model: ListedModel, how: How, folder: Path) -> dict[str, Any]:
    """Measure a model in a process of its own.

    Args:
        model: which.
        how: what is measured of it.
        folder: a run folder a measurement is made in it; whatever it holds is deleted.

    Returns:
        Its outcome, which is also in ``outcome.json``: ``failures`` (what is wrong, by measurement,
        by ``model`` where it cannot be opened, by ``process`` where that ended early);
        ``fetched_bytes`` of weights and ``peak_memory`` of the process, in bytes, None where they
        are not known; ``seconds``.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    context: Any = multiprocessing.get_context("forkserver" if _SERVES else "spawn")
    if _SERVES:
        context.set_forkserver_preload(["normprobe.probe"])
    received, sent = context.Pipe(duplex=False)
    started = time.perf_counter()
    process = context.Process(target=_measure, args=(model, how, folder, sent))
    process.start()
    sent.close()
    try:
        process.join(how.timeout)
        late = process.is_alive()
    finally:
        process.kill()
        process.join()
    outcome: dict[str, Any] = {"model": model.model, "revision": model.revision, "failures": {}}
    outcome |= {"fetched_bytes": None, "peak_memory": None}
    for part in _all_of(received):
        outcome["failures"] |= part.pop("failures", {})
        outcome |= part
    if late:
        outcome["failures"]["process"] = f"it took longer than {(how.timeout or 0) / 60:g} minutes"
    elif process.exitcode:
        outcome["failures"]["process"] = _end_of(process.exitcode)
    outcome["seconds"] = round(time.perf_counter() - started, 3)
    write_by_rename(folder / OUTCOME, json_bytes(outcome))
    return outcome


def outcome_in(folder: Path) -> dict[str, Any] | None:
    """The outcome of a model that was finished; None of another."""
    try:
        found: dict[str, Any] = json.loads((folder / OUTCOME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def _all_of(received: Connection) -> Iterator[dict[str, Any]]:
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


def _measure(model: ListedModel, how: How, folder: Path, sent: Connection) -> None:
    """What the process of a model does."""
    _end_with_parent()
    _write_to(folder / _LOG)
    from normprobe.model.checkpoint import SPECIMEN
    from normprobe.probe import Probe

    opened: list[Probe] = []
    ranged = how.range_reads and model.model != SPECIMEN and not Path(model.model).is_dir()
    loading = {**how.loading, "revision": model.revision or None, "range_reads": ranged}
    problem = _failure(lambda: opened.append(Probe(model.model, **loading)))
    if problem:
        sent.send({"failures": {"model": problem}, "fetched_bytes": 0})
        return
    for name in how.measurements:
        problem = _failure(partial(_run, opened[0], name, how, folder / name))
        failures = {name: problem} if problem else {}
        sent.send({"failures": failures, "fetched_bytes": opened[0].fetched_bytes})
        sent.send({"peak_memory": _peak_memory()})


def _run(probe: "Probe", name: str, how: How, folder: Path) -> None:
    measured_by = measurement(name)
    if not measured_by.over_samples:
        probe.embeddings(output=folder)
        return
    alone = {} if measured_by.batches else {"batch_size": 1}
    probe.measure(name, how.data, **how.draw, **{**how.batching, **alone}, output=folder)


def _failure(act: Callable[[], None]) -> str:
    """What is wrong, in one line; empty where nothing is."""
    import traceback

    from normprobe.known_failures import known_failure

    try:
        act()
    except Exception as error:
        traceback.print_exc()
        known = known_failure(error)
        return known.problem if known else f"{type(error).__name__}: {first_line(error)}"
    return ""


def _peak_memory() -> int | None:
    """Bytes that this process had in memory at most; None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _end_with_parent() -> None:
    """End when the survey ends, however it ends: the next one may begin at once."""
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
