"""One model of a survey, in a process of its own: whatever happens there, the next is measured."""

import json
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normprobe.measurements import measurement
from normprobe.runs.apart import Send, done_apart, failure_of
from normprobe.runs.atomic import write_by_rename
from normprobe.runs.json_text import json_bytes
from normprobe.survey.model_list import ListedModel

if TYPE_CHECKING:
    from normprobe.probe import Probe

#: What a measured model leaves in its folder, beside its runs: a model without it was not finished.
OUTCOME = "outcome.json"
_LOG = "log.txt"


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
    """Measure a model in a process of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started = time.perf_counter()
    ended = done_apart(partial(_measure, model, how, folder), folder / _LOG, timeout=how.timeout)
    outcome: dict[str, Any] = {"model": model.model, "revision": model.revision, "failures": {}}
    outcome |= {"fetched_bytes": None, "peak_memory": None}
    for part in ended.sent:
        outcome["failures"] |= part.pop("failures", {})
        outcome |= part
    if ended.problem:
        outcome["failures"]["process"] = ended.problem
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


def _measure(model: ListedModel, how: How, folder: Path, send: Send) -> None:
    """What the process of a model does."""
    from normprobe.model.checkpoint import is_here
    from normprobe.probe import Probe

    opened: list[Probe] = []
    ranged = how.range_reads and not is_here(model.model)
    loading = {**how.loading, "revision": model.revision or None, "range_reads": ranged}
    failure = failure_of(lambda: opened.append(Probe(model.model, **loading)))
    if failure:
        send({"failures": {"model": failure.problem}, "fetched_bytes": 0})
        return
    for name in how.measurements:
        failure = failure_of(partial(_run, opened[0], name, how, folder / name))
        failures = {name: failure.problem} if failure else {}
        send({"failures": failures, "fetched_bytes": opened[0].fetched_bytes})
        send({"peak_memory": _peak_memory()})


def _run(probe: "Probe", name: str, how: How, folder: Path) -> None:
    measured_by = measurement(name)
    if not measured_by.over_samples:
        probe.embeddings(output=folder)
        return
    alone = {} if measured_by.batches else {"batch_size": 1}
    probe.measure(name, how.data, **how.draw, **{**how.batching, **alone}, output=folder)


def _peak_memory() -> int | None:
    """Bytes that this process had in memory at most; None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
