"""Which commands make some tables and figures of the paper, and which of them are done."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from normprobe.errors import NormprobeError
from normprobe.measurements import measurement
from normprobe.model.checkpoint import is_here
from normprobe.paper.artefacts import Artefact, Changes, PaperCommand
from normprobe.runs.run_folder import read_record
from normprobe.runs.run_store import COMPLETE

#: Words that change how a run is made, not what it measures.
_FREE = {"--overwrite", "--range-reads", "--resume", "--trust-remote-code"}


@dataclass(frozen=True)
class Job:
    """A command that measures one model, as it is run.

    Attributes:
        command: as the paper's list has it.
        words: what is typed behind ``normprobe``.
    """

    command: PaperCommand
    words: tuple[str, ...]

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
            if command.model and "-o" in command.words:  # `compare` and `align --stats` load none
                by_folder.setdefault(command.folder, Job(command, _words(command, changes)))
    jobs = list(by_folder.values())
    first = {job.model: place for place, job in reversed([*enumerate(jobs)])}
    return sorted(jobs, key=lambda job: (first[job.model], "--range-reads" in job.words))


def _words(command: PaperCommand, changes: Changes) -> tuple[str, ...]:
    words = changes.apply(command.words)
    ranged = measurement(words[0]).range_reads and not is_here(words[1])
    return (*words, *(["--range-reads"] if ranged else []))


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
    if _told(typed) != _told(job.words):
        raise NormprobeError(
            f"{job.command.folder} holds a run of another command: expected "
            f"{shlex.join(_told(job.words))}, received {shlex.join(_told(typed))}",
            "pass --overwrite to make it anew, or choose another --output",
        )
    if record["status"] == COMPLETE:
        return ()
    resumes = measurement(job.words[0]).over_samples
    return (*job.words, "--resume" if resumes else "--overwrite")


def _told(words: Sequence[str]) -> list[str]:
    """What is measured: not how, and not into which folder, which may have been moved."""
    places = [place for place, word in enumerate(words) if word == "-o"]
    kept = [word for place, word in enumerate(words) if not {place, place - 1} & {*places}]
    return [word for word in kept if word not in _FREE]
