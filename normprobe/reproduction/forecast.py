"""What commands will fetch and hold in memory, from the headers of the weight files alone.

Headers are read by ranges: of a checkpoint on a hub nothing stays but its config.
"""

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from normprobe.errors import NormprobeError
from normprobe.measurements import measurement
from normprobe.reproduction.jobs import Job
from normprobe.runs.apart import Send, done_apart, failure_of


class Forecast(NamedTuple):
    """What a command will take.

    Attributes:
        files: bytes that it fetches of each weight file that is not here, None where the hub does
            not tell.
        whole: files are fetched whole, and stay in the hub's cache; else ranges of them.
        cached: bytes of the tensors it reads that lie in the hub's cache.
        memory: bytes of all tensors it reads.
    """

    files: dict[str, int | None]
    whole: bool
    cached: int
    memory: int


def forecast_apart(job: Job) -> Forecast | NormprobeError:
    """Look at the models of a command in a process of its own: their own code may run there."""
    ended = done_apart(partial(_send_forecast, job), Path(os.devnull))
    if not ended.sent:
        return NormprobeError(f"{job.model}: {ended.problem}", "see `normprobe inspect --weights`")
    found: Forecast | NormprobeError = ended.sent[0]
    return found


def bytes_fetched(forecasts: Iterable[Forecast]) -> list[int | None]:
    """What each of some commands fetches when they run in order; None where that is unknown.

    A file that one of them fetches whole is here for those behind it.
    """
    here, fetched = set[str](), list[int | None]()
    for forecast in forecasts:
        sizes = [size for file, size in forecast.files.items() if file not in here]
        known = [size for size in sizes if size is not None]
        fetched.append(sum(known) if len(known) == len(sizes) else None)
        here |= set(forecast.files if forecast.whole else ())
    return fetched


def forecast(job: Job) -> Forecast:
    """What a command will take."""
    from normprobe.model.checkpoint import open_checkpoint
    from normprobe.model.find.structure import find_parts, find_tables
    from normprobe.model.load.plan import plan_for
    from normprobe.model.load.reading import cached_bytes, fetched_files, reads_ranges
    from normprobe.model.load.required_tensors import everything

    measured_by = measurement(job.words[0])
    plans = [
        plan_for(
            measured_by.needs or everything,
            open_checkpoint(model, trust_remote_code="--trust-remote-code" in job.words),
            find=find_parts if measured_by.runs_model else find_tables,
            range_reads="--range-reads" in job.words,
        )
        for model in job.models
    ]
    return Forecast(
        {f"{p.checkpoint.source}/{f}": size for p in plans for f, size in fetched_files(p).items()},
        not all(reads_ranges(plan) for plan in plans),
        sum(cached_bytes(plan) for plan in plans),
        sum(plan.nbytes_in(plan.files) for plan in plans),
    )


def _send_forecast(job: Job, send: Send) -> None:
    found: list[Forecast] = []
    failure = failure_of(lambda: found.append(forecast(job)))
    send(failure or found[0])
