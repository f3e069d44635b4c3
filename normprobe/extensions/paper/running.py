"""``paper --run``: what it takes, a question, the commands, then tables, figures and the page."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import typer

from normprobe.cli import console
from normprobe.errors import NormprobeError, number_of
from normprobe.extensions.paper.artefacts import Artefact, Changes, PaperCommand
from normprobe.extensions.paper.made import make
from normprobe.extensions.paper.reproduction import (
    Forecast,
    Job,
    any_fetched,
    copy_run,
    forecast_apart,
    in_a_line,
    is_finished,
    jobs_of,
    plan_by_model,
    plan_sentence,
    run_apart,
    same_commands,
    still_to_type,
    write_page,
)
from normprobe.run import load_run, write_published
from normprobe.runs.run_folder import read_record
from normprobe.schema import PUBLISHED

#: Why a command left no complete run, by the folder of that.
_Failures = dict[Path, NormprobeError]


def run_artefacts(
    name: str,
    wanted: Sequence[Artefact],
    changes: Changes,
    output: Path,
    *,
    yes: bool,
    overwrite: bool,
) -> None:
    """Make some tables and figures of the paper, and of several of them a page.

    What is wrong with one command stops no other; it is told in the end.
    """
    unpublished = [
        (artefact.name, ", ".join(absent), "not published: --model NAME=VALUE gives your own")
        for artefact in wanted
        if (absent := [word for word in artefact.own if word not in changes.substitutes])
    ]
    possible = [a for a in wanted if a.name not in {name for name, _, _ in unpublished}]
    failures = _run(name, possible, changes, output, yes=yes, overwrite=overwrite)
    if len(wanted) == 1:
        for command in wanted[0].commands(output):
            _show(command.folder)
    made = {artefact.name: make(artefact, changes, output, failures) for artefact in possible}
    lacking = [row for found in made.values() for row in found.lacking]
    if len(wanted) > 1:
        results = {name: found.result for name, found in made.items() if found.result is not None}
        rows = pd.DataFrame([*lacking, *unpublished], columns=["artefact", "model", "reason"])
        console.message(f"all of it on one page: {write_page(output, results, rows)}")
    for row in [*lacking, *unpublished]:
        console.message(in_a_line(row))
    if lacking:
        raise typer.Exit(console.FAILED)


def _run(
    name: str,
    wanted: Sequence[Artefact],
    changes: Changes,
    output: Path,
    *,
    yes: bool,
    overwrite: bool,
) -> _Failures:
    """Run the commands that are not finished; what is wrong with them."""
    failures: _Failures = {}
    jobs = jobs_of(wanted, changes, output)
    to_type = {job: words for job in jobs if (words := still_to_type(job, overwrite=overwrite))}
    first = same_commands(jobs)
    copies = [job for job in to_type if first[job] is not job]
    forecasts = _forecasts([job for job in to_type if job not in copies], failures)
    if jobs:
        _agree(name, forecasts, len(jobs) - len(to_type), yes=yes, by_model=len(wanted) > 1)
    for place, job in enumerate(forecasts, start=1):
        console.message(f"{place} of {len(forecasts)}: normprobe {shlex.join(to_type[job])}")
        if failure := run_apart(to_type[job], job.command.folder):
            failures[job.command.folder] = failure
    if copies:
        console.message(f"{number_of(len(copies), 'command')} as above, of other names: copied")
    for job in copies:
        made, copy = first[job].command.folder, job.command.folder
        if made in failures:
            failures[copy] = failures[made]
        else:
            copy_run(made, copy)
    for job in jobs:
        _note_published(job.command, changes)
    for artefact in wanted:
        *measuring, last = artefact.commands(output)
        runs = [command.folder for command in measuring if is_finished(command.folder)]
        if artefact.compare and len(runs) > 1 and (failure := _compare(last.folder, runs)):
            failures[last.folder] = failure
    return failures


def _compare(folder: Path, runs: Sequence[Path]) -> NormprobeError | None:
    """Put runs side by side, anew: it is soon done, and there may be more runs than before."""
    anew = ["--overwrite"] if read_record(folder) is not None else []
    return run_apart(("compare", *map(str, runs), "-o", str(folder), *anew), folder)


def _forecasts(jobs: Sequence[Job], failures: _Failures) -> dict[Job, Forecast]:
    """What each command will take; those that cannot run are failures."""
    if jobs:
        console.message(f"looks at the checkpoints of {number_of(len(jobs), 'command')}")
    forecasts = {}
    for job in jobs:
        found = forecast_apart(job)
        if isinstance(found, NormprobeError):
            failures[job.command.folder] = found
        else:
            forecasts[job] = found
    return forecasts


def _agree(
    name: str, forecasts: Mapping[Job, Forecast], finished: int, *, yes: bool, by_model: bool
) -> None:
    """Say what is to come, and ask where something is to be fetched."""
    for line in plan_by_model(forecasts) if by_model else ():
        console.message(line)
    if forecasts or finished:
        console.message(plan_sentence("the paper" if by_model else name, forecasts, finished))
    if yes or not any_fetched(forecasts):
        return
    if not sys.stdin.isatty():
        raise NormprobeError(
            f"paper --run {name} is about to fetch weights, and there is no terminal to ask",
            "pass --yes to fetch them",
        )
    if not typer.confirm("Go on?", err=True):
        console.message("nothing was fetched or run")
        raise typer.Exit(console.FAILED)


def _note_published(command: PaperCommand, changes: Changes) -> None:
    """Put the paper's numbers beside those of a model that another one took the place of."""
    if changes.substitutes.keys() & set(command.words) and is_finished(command.folder):
        measured = load_run(command.folder)
        if not measured.store.has_table(PUBLISHED):
            write_published(measured.store, command.model, command.base)


def _show(folder: Path) -> None:
    if is_finished(folder):
        with console.stdout_console() as target:
            load_run(folder).show(target)
        console.message(f"run folder: {folder}")
