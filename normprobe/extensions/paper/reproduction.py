"""The paper's tables and figures made anew: what it takes, the commands, and one page of all."""

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from runpy import run_module
from typing import NamedTuple

import pandas as pd
from rich.filesize import decimal

from normprobe.errors import NormprobeError, number_of
from normprobe.extensions.paper.artefacts import Artefact, Changes, PaperCommand
from normprobe.measurements import measurement, over_samples
from normprobe.paper.tables import PaperTable
from normprobe.report.page.blocks import heading, note, printed
from normprobe.report.page.document import Section, page
from normprobe.runs.begin import provenance
from normprobe.runs.files import write_by_rename
from normprobe.runs.processes import Send, done_apart, failure_of
from normprobe.runs.run_folder import COMPLETE, RECORD, RunFolder, read_record
from normprobe.schema import PUBLISHED

#: Words that change how a run is made, not what it measures.
_FREE = {"--overwrite", "--resume", "--trust-remote-code"}


@dataclass(frozen=True)
class Job:
    """A command that measures one model, as it is run."""

    command: PaperCommand  # as the paper's list has it
    words: tuple[str, ...]  # what is typed behind ``normprobe``

    @property
    def model(self) -> str:
        """What is measured."""
        return self.words[1]

    @property
    def models(self) -> list[str]:
        """All that is read: the model, and the base that it is compared with."""
        base = [self.words[self.words.index("--base") + 1]] if "--base" in self.words else []
        return [self.model, *base]


def jobs_of(wanted: Iterable[Artefact], changes: Changes, output: Path) -> list[Job]:
    """The commands that measure a model, each once, those of one model behind each other.

    Of a model, those that fetch whole files come first: the others then find what they read.
    """
    by_folder = dict[Path, Job]()
    for artefact in wanted:
        for command in artefact.commands(output):
            # `compare` and `inspect --weights` load no model.
            if command.model and "-o" in command.words:
                by_folder.setdefault(command.folder, Job(command, (*changes.apply(command.words),)))
    jobs = list(by_folder.values())
    first = {job.model: place for place, job in reversed([*enumerate(jobs)])}
    whole = ("layers", "grounding", "attention")  # the decoder, which is nearly everything
    return sorted(jobs, key=lambda job: (first[job.model], job.words[0] not in whole))


def same_commands(jobs: Iterable[Job]) -> dict[Job, Job]:
    """For each job the first that is the same command, maybe itself: of other models no two are."""
    first = dict[tuple[str, ...], Job]()
    return {job: first.setdefault((*_measured(job.words),), job) for job in jobs}


def copy_run(source: Path, target: Path) -> None:
    """The run of the same command, without what the paper says of another model."""
    made = RunFolder.open(source)
    copied = RunFolder.create(target, overwrite=True, record=made.record)
    left = shutil.ignore_patterns(RECORD, f"{PUBLISHED}.csv", ".*")
    shutil.copytree(source, target, ignore=left, dirs_exist_ok=True)
    files = [name for name in made.record["files"] if name != f"{PUBLISHED}.csv"]
    copied.finish(files=files, warnings=made.record["warnings"])


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a complete run."""
    record = read_record(folder)
    return record is not None and record["status"] == COMPLETE


def still_to_type(job: Job, *, overwrite: bool = False) -> tuple[str, ...]:
    """What is to be typed to finish a job; nothing where it is finished."""
    record = read_record(job.command.folder)
    if overwrite and record is not None:
        return (*job.words, "--overwrite")
    if record is None:
        return job.words
    typed = tuple(str(word) for word in record.get("argv", ())[1:])
    if _measured(typed) != _measured(job.words):
        raise NormprobeError(
            f"{job.command.folder} holds a run of another command: expected "
            f"{shlex.join(_measured(job.words))}, received {shlex.join(_measured(typed))}",
            "pass --overwrite to make it anew, or choose another --output",
        )
    if record["status"] == COMPLETE:
        return ()
    return (*job.words, "--resume" if job.words[0] in over_samples() else "--overwrite")


def _measured(words: Sequence[str]) -> list[str]:
    """What is measured: not how, and not into which folder, which may have been moved."""
    places = [place for place, word in enumerate(words) if word == "-o"]
    kept = [word for place, word in enumerate(words) if not {place, place - 1} & {*places}]
    return [word for word in kept if word not in _FREE]


class Forecast(NamedTuple):
    """What a command will take."""

    # bytes that it fetches of each weight file that is not here, None where the hub does not tell
    files: dict[str, int | None]
    whole: bool  # files are fetched whole, and stay in the hub's cache; else ranges of them
    cached: int  # bytes of the tensors it reads that lie in the hub's cache
    memory: int  # bytes of all tensors it reads


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
    from normprobe.model.load.loading import cached_bytes, fetched_files, reads_ranges
    from normprobe.model.load.required_tensors import everything
    from normprobe.runs.model_source import plan_of_least_bytes

    measured_by = measurement(job.words[0])
    plans = [
        plan_of_least_bytes(
            measured_by.needs or everything,
            open_checkpoint(model, trust_remote_code="--trust-remote-code" in job.words),
            find=find_parts if measured_by.runs_model else find_tables,
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


def plan_sentence(name: str, forecasts: Mapping[Job, Forecast], finished: int) -> str:
    """What is to come, in one line."""
    are = "is" if finished == 1 else "are"
    done = f"{number_of(finished, 'command')} of {name} {are} finished already"
    if not forecasts:
        return done
    fetched = bytes_fetched(forecasts.values())
    verb = f"fetches {_size(fetched)} of weights" if any_fetched(forecasts) else "reads weights"
    cached = sum(forecast.cached for forecast in forecasts.values())
    largest = max(forecasts, key=lambda job: forecasts[job].memory)
    return (
        f"{verb} for {number_of(len(forecasts), 'command')} of {name}, each in a process of its own"
        + (f"; {decimal(cached)} are cached" if cached else "")
        + f"; the largest, {largest.words[0]} of {largest.model}, holds "
        f"{decimal(forecasts[largest].memory)} in memory" + (f"; {done}" if finished else "")
    )


def plan_by_model(forecasts: Mapping[Job, Forecast]) -> list[str]:
    """A line a model: its commands, and what they fetch and need."""
    fetched = dict(zip(forecasts, bytes_fetched(forecasts.values()), strict=True))
    lines = []
    for model in dict.fromkeys(job.model for job in forecasts):
        jobs = [job for job in forecasts if job.model == model]
        memory = max(forecasts[job].memory for job in jobs)
        commands = ", ".join(dict.fromkeys(job.words[0] for job in jobs))
        lines.append(
            f"  {model}: {commands}; fetches {_size([fetched[job] for job in jobs])}, "
            f"holds {decimal(memory)} in memory"
        )
    return lines


def any_fetched(forecasts: Mapping[Job, Forecast]) -> bool:
    """Whether a byte of weights is fetched, as far as that is known."""
    return any(size != 0 for size in bytes_fetched(forecasts.values()))


def _size(sizes: list[int | None]) -> str:
    """Their sum; a size that the hub does not tell makes it a lower bound."""
    known = decimal(sum(size for size in sizes if size is not None))
    if None in sizes:
        return f"at least {known}"
    return known if any(sizes) else "nothing"


#: The run folder of a reproduction, its main table, and its page.
FOLDER, NOT_MADE, PAGE = "all", "not_made", "paper.html"


def in_a_line(row: Iterable[str]) -> str:
    """Artefact, model and reason; what is empty is left out."""
    return ": ".join(filter(None, row))


def write_page(
    output: Path,
    made: Mapping[str, PaperTable | Path],
    not_made: pd.DataFrame,
) -> Path:
    """Put all into a run folder of its own, and that on a page."""
    started = time.perf_counter()
    facts = {"command": "paper", "model": "The Unseen Bias (arXiv 2512.08374)"}
    run = RunFolder.create(
        output / FOLDER, overwrite=True, record=provenance(sys.argv, {}, **facts)
    )
    blocks = []
    for name, result in made.items():
        if isinstance(result, PaperTable):
            run.write_table(name, result.numbers)
            blocks += printed(result.readable)
        else:
            plot = run.path / "plots" / f"{name}.png"
            plot.parent.mkdir(exist_ok=True)
            shutil.copyfile(result, plot)
    run.write_table(NOT_MADE, not_made)
    if len(not_made):
        rows = not_made.itertuples(index=False)
        blocks += [heading("Not made, or in part"), *(note(in_a_line(row)) for row in rows)]
    run.finish(seconds=round(time.perf_counter() - started, 3))
    text = page([Section(run, blocks, shown=run.table_names)])
    file = output / PAGE
    write_by_rename(file, text.encode("utf-8", errors="xmlcharrefreplace"))
    return file
