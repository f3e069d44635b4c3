"""A survey: models one after another, each in a process of its own, then one table of all."""

import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

from normprobe.data.data_set import open_data
from normprobe.errors import NormprobeError
from normprobe.measurements.survey.measure import survey_tables
from normprobe.run import Run, finished
from normprobe.runs.begin import AUTO, Output, start_run
from normprobe.runs.interrupted import naming_the_run
from normprobe.runs.run_folder import RunFolder, plain_name
from normprobe.survey.hub_cache import FOLDER, HubCache, Keep
from normprobe.survey.model_list import ListedModel
from normprobe.survey.one_model import How, measured_apart, outcome_in

log = logging.getLogger(__name__)

_AS_DEFAULT: Mapping[str, Any] = {}

#: Where the runs of the models lie in the folder of a survey.
MODELS = "models"


def survey(
    models: Sequence[ListedModel],
    *,
    layers: bool = False,
    data: str = "sample",
    limit: int | None = None,
    seed: int = 42,
    skip_bad: bool = False,
    prompt: str | None = None,
    batching: Mapping[str, Any] = _AS_DEFAULT,
    loading: Mapping[str, Any] = _AS_DEFAULT,
    keep: Keep = "none",
    timeout: float | None = None,
    output: str | Path = AUTO,
    overwrite: bool = False,
    resume: bool = False,
    retry: bool = False,
) -> Run:
    """Measure many models, and put their numbers into one table.

    Of each model ``interface`` and ``embeddings``, by range reads where it is on a hub, or with
    ``layers`` also the decoder layers, by whole files: these read nearly everything.
    """
    if not models:
        raise NormprobeError("no model to survey", "name models, or a file that lists them")
    started = time.perf_counter()
    how = How(
        ("layers", "interface", "embeddings") if layers else ("interface", "embeddings"),
        data,
        {"prompt": prompt, "limit": limit, "seed": seed, "skip_bad": skip_bad},
        batching,
        loading,
        range_reads=not layers,
        timeout=None if timeout is None else 60 * timeout,
    )
    run = _begun(how, output, overwrite=overwrite, resume=resume)
    with naming_the_run(run):
        folders = _folders(models, run.path / MODELS)
        cache = HubCache(run.path, _hub_cache(), keep)
        os.environ.update(
            cache.variables
        )  # before a process starts: libraries read it when imported
        outcomes = []
        for place, (model, folder) in enumerate(zip(models, folders, strict=True), start=1):
            outcome = outcome_in(folder)
            if outcome is None or (retry and outcome["failures"]):
                cache.open()
                outcome = measured_apart(model, how, folder)
                cache.close()
                log.info("%d of %d: %s, %.0f s%s", place, len(models), model, *_told(outcome))
            outcomes.append(outcome)
        cache.close()
        tables = survey_tables(outcomes, folders, how.measurements)
        return finished(run, tables, started)


def _begun(how: How, output: Output, *, overwrite: bool, resume: bool) -> RunFolder:
    """The folder of the survey; one that begins anew holds no models of an older one."""
    options = {"layers": "layers" in how.measurements, "data": how.data}
    options |= {**how.draw, **how.batching, **how.loading}
    facts = {"model": "survey", "model_revision": None, "model_type": None}
    samples = open_data(how.data, **how.draw)
    run = start_run(
        "survey",
        facts,
        options,
        data=samples,
        output=output,
        overwrite=overwrite,
        resume=resume,
    )
    assert isinstance(run, RunFolder)
    if not resume:
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


def _told(outcome: dict[str, Any]) -> tuple[float, str]:
    reasons = dict.fromkeys(outcome["failures"].values())
    return outcome["seconds"], "".join(f"; {reason}" for reason in reasons)
