"""A survey: models one after another, each in a process of its own, then one table of all."""

import json
import logging
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normprobe.data.data_set import open_data
from normprobe.errors import NormprobeError
from normprobe.extensions.survey.measure import survey_tables
from normprobe.extensions.survey.models import FOLDER, HubCache, Keep, ListedModel
from normprobe.measurements import over_samples
from normprobe.options import Loading, Output, Sampling
from normprobe.run import Run, finished
from normprobe.runs.begin import doubt, start_run
from normprobe.runs.files import json_bytes, write_by_rename
from normprobe.runs.processes import Send, done_apart, failure_of, naming_the_run
from normprobe.runs.run_folder import RunFolder, plain_name, read_record

if TYPE_CHECKING:
    from normprobe.probe import Probe


#: What a measured model leaves in its folder, beside its runs: a model without it was not finished.
OUTCOME = "outcome.json"
_LOG = "log.txt"


@dataclass(frozen=True)
class How:
    """How each model is measured."""

    measurements: tuple[str, ...]  # in this order; the first loads what the others read
    sampling: Sampling  # which samples, and how many at once
    loading: Loading  # how it is loaded; the list has the revisions
    timeout: float | None  # seconds that a model may take; None: no limit


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
    from normprobe.probe import Probe

    opened: list[Probe] = []
    loading = {**vars(how.loading), "revision": model.revision or None}
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
    measured_by = over_samples().get(name)
    if measured_by is None:
        probe.embeddings(output=folder)
        return
    sampling = how.sampling if measured_by.batches else replace(how.sampling, batch_size=1)
    probe.measure(name, **vars(sampling), output=folder)


def _peak_memory() -> int | None:
    """Bytes that this process had in memory at most; None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


log = logging.getLogger(__name__)

#: Where the runs of the models lie in the folder of a survey.
MODELS = "models"


def survey(
    models: Sequence[ListedModel],
    sampling: Sampling,
    loading: Loading,
    output: Output,
    *,
    layers: bool = False,
    keep: Keep = "none",
    timeout: float | None = None,
) -> Run:
    """Measure many models, and put their numbers into one table.

    Of each model ``interface`` and ``embeddings``, or with ``layers`` also the decoder layers. A
    survey that is resumed measures models again that failed.
    """
    if not models:
        raise NormprobeError("no model to survey", "name models, or a file that lists them")
    started = time.perf_counter()
    how = How(
        ("layers", "interface", "embeddings") if layers else ("interface", "embeddings"),
        sampling,
        loading,
        timeout=None if timeout is None else 60 * timeout,
    )
    run = _begun(how, output)
    run.note(surveyed=[str(model) for model in models])
    with naming_the_run(run):
        folders = _folders(models, run.path / MODELS)
        cache = HubCache(run.path, _hub_cache(), keep)
        outcomes = []
        with cache.used():
            for place, (model, folder) in enumerate(zip(models, folders, strict=True), start=1):
                outcome = outcome_in(folder)
                if outcome is None or outcome["failures"]:
                    cache.open()
                    outcome = measured_apart(model, how, folder)
                    cache.close()
                    log.info(
                        "%d of %d: %s, %.0f s%s",
                        place,
                        len(models),
                        model,
                        *_took(outcome),
                    )
                outcomes.append(outcome)
        cache.close()
        for model, folder in zip(models, folders, strict=True):
            for name in how.measurements:
                for text in (read_record(folder / name) or {}).get("doubts", []):
                    doubt(run, f"{model}, {name}: {text}")
        tables = survey_tables(outcomes, folders, how.measurements)
        return finished(run, tables, started)


def _begun(how: How, output: Output) -> RunFolder:
    """The folder of the survey; one that begins anew holds no models of an older one."""
    measured = [name for name in how.measurements if name == "layers"]
    options = {"measure": measured, **vars(how.sampling), **how.loading.record}
    facts = {"model": "survey", "model_revision": None, "model_type": None}
    samples = open_data(how.sampling.data, **how.sampling.draw)
    run = start_run("survey", facts, options, output, samples)
    assert isinstance(run, RunFolder)
    if not output.resume:
        run.replace_older()
        for name in (MODELS, FOLDER):
            shutil.rmtree(run.path / name, ignore_errors=True)
    return run


def _folders(models: Sequence[ListedModel], parent: Path) -> list[Path]:
    """A folder for each model, named after it."""
    folders: list[Path] = []
    for model in models:
        plain = parent / plain_name(str(model).replace("/", "--"), "model")
        others = (plain.with_name(f"{plain.name}~{number}") for number in count(2))
        folders.append(next(path for path in chain([plain], others) if path not in folders))
    return folders


def _hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _took(outcome: dict[str, Any]) -> tuple[float, str]:
    reasons = dict.fromkeys(outcome["failures"].values())
    return outcome["seconds"], "".join(f"; {reason}" for reason in reasons)
