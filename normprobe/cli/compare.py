"""``normprobe compare``."""

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normprobe.cli import console
from normprobe.cli import options as opt
from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    from normprobe.report.run_dir import RunDir


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN RUN ...", help="Run folders of one command.", show_default=False
        ),
    ],
    label: Annotated[
        list[str] | None,
        typer.Option(help="Name of a run, once for each in their order; a number is its step."),
    ] = None,
    output: opt.Output = None,
    overwrite: opt.Overwrite = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Runs of one command side by side: models, checkpoints, before and after (Figures 3-5)."""
    chosen = dict(locals())
    with console.reported(verbose):
        from normprobe.analyses.compare import joined, labels_of, ranking, step_of
        from normprobe.cli.run import finish_run
        from normprobe.report.comparison import comparison_verdict, print_ranking
        from normprobe.report.provenance import provenance
        from normprobe.report.run_dir import RunDir, read_table

        started = time.perf_counter()
        opened = open_runs(runs)
        command = str(opened[0].record["command"])
        labels = checked_labels(label, len(opened))
        names = [run.path.resolve().name for run in opened]
        steps = [
            step_of(run.record, name, given)
            for run, name, given in zip(opened, names, labels or [""] * len(opened), strict=True)
        ]
        if not labels:
            if len(set(names)) < len(names):
                names = ["/".join(run.path.resolve().parts[-2:]) for run in opened]
            labels = labels_of([run.record for run in opened], names)
        tables = [read_table(run.path, command) for run in opened]
        order = in_order(steps)
        tables, labels = [tables[place] for place in order], [labels[place] for place in order]
        table, ranked = joined(tables, labels), ranking(command, tables, labels)
        figures = f"compare_{command}"
        if is_training(steps):
            figures = "compare_training" if command == "layers" else figures
            by_run = dict(zip(labels, (steps[place] for place in order), strict=True))
            table.insert(1, "step", table["run"].map(by_run))

        record = provenance(
            sys.argv,
            chosen,
            command="compare",
            model=f"{len(opened)} runs of {command}",
            data=shared([run.record.get("data") for run in opened]),
            compared=command,
            runs={labels[new]: str(runs[old]) for new, old in enumerate(order)},
        )
        now = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        path = output or Path("runs") / "compare" / f"{command}-{now}"
        made = RunDir.create(path, overwrite=overwrite, record=record)
        samples = [run.record.get("sample_ids") for run in opened]  # of a training there are none
        if any(ids != samples[0] for ids in samples):
            warning = "the runs measured different samples: part of a difference may be the data's"
            made.add_warning(warning)
            console.talk(f"warning: {warning}")
        with made.discarded_on_failure():
            written = {"compare": table, "ranking": ranked}
            finish_run(made, figures, written, started)
        console.show(
            made.path,
            ranked,
            lambda table, target: print_ranking(command, table, target),
            comparison_verdict(command, ranked),
            console.mode_of(json, quiet),
        )


def open_runs(paths: Sequence[Path]) -> "list[RunDir]":
    """Open the run folders and refuse what cannot stand side by side.

    Raises:
        NormprobeError: fewer than two, one twice, no run folder, an incomplete run, or runs of
            different commands or of different schema versions.
    """
    from normprobe.analyses.compare import RANKED
    from normprobe.report.run_dir import COMPLETE, RunDir

    if len(paths) < 2:
        raise NormprobeError(
            f"compare needs at least two runs; received {len(paths)}",
            "give the run folders that earlier commands printed",
        )
    twice = [path for place, path in enumerate(paths) if path.resolve() in _seen(paths, place)]
    if twice:
        raise NormprobeError(f"{twice[0]} is given twice", "give each run folder once")
    opened = [RunDir.open(path) for path in paths]
    for run in opened:
        command = run.record.get("command")
        if command not in RANKED:
            raise NormprobeError(
                f"{run.path} is a run of {command!r}; expected one of {', '.join(RANKED)}",
                "give run folders of one of these commands",
            )
        if run.record["status"] != COMPLETE:
            raise NormprobeError(
                f"{run.path} is {run.record['status']}: it was interrupted",
                "finish it with --resume, or leave it out",
            )
    for what, name in (("command", "runs of different commands"), ("schema_version", "tables")):
        values = {str(run.record.get(what)): run.path for run in reversed(opened)}
        if len(values) > 1:
            differ = "; ".join(f"{path}: {value}" for value, path in reversed(values.items()))
            raise NormprobeError(
                f"cannot compare {name} ({what.replace('_', ' ')}): {differ}",
                "give runs of one command, all written by this version of normprobe",
            )
    return opened


def checked_labels(labels: Sequence[str] | None, runs: int) -> list[str]:
    """The labels given by hand; none where none are.

    Raises:
        NormprobeError: not one a run, or one twice.
    """
    labels = list(labels or ())
    if labels and len(labels) != runs:
        raise NormprobeError(
            f"{runs} runs but {len(labels)} labels", "pass --label once for each run, or not at all"
        )
    if len(set(labels)) < len(labels):
        raise NormprobeError(f"labels repeat: {', '.join(labels)}", "pass different labels")
    return labels


def is_training(steps: Sequence[int | None]) -> bool:
    """Whether the runs are checkpoints of one training: each has a step of its own."""
    return None not in steps and len(set(steps)) == len(steps)


def in_order(steps: Sequence[int | None]) -> list[int]:
    """Places of the runs: by step for a training, else as given."""
    places = list(range(len(steps)))
    return sorted(places, key=lambda place: steps[place] or 0) if is_training(steps) else places


def shared(values: Sequence[Any]) -> Any:
    """The value that all have; None where they differ."""
    return values[0] if all(value == values[0] for value in values) else None


def _seen(paths: Sequence[Path], place: int) -> set[Path]:
    return {path.resolve() for path in paths[:place]}
