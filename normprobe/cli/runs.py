"""The commands that take finished runs: ``show``, ``compare`` and ``report``."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normprobe.cli import console
from normprobe.cli.grouping import Display, Without, grouped, only
from normprobe.errors import NormprobeError
from normprobe.options import Excludes, Output

if TYPE_CHECKING:
    from normprobe.run import Run

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of run folders.")
]


def require_folders(runs: Sequence[Path]) -> None:
    """Tell that a run is not there before anything is loaded that reads one."""
    for run in runs:
        if not os.path.lexists(run):
            raise NormprobeError(
                f"no such folder: {run}",
                "give the folder that an earlier normprobe command printed",
            )


def _tables_of(context: typer.Context) -> list[str]:
    """What the Tab key finds of ``--table``: the tables of the runs that were typed before it."""
    return sorted({table.stem for run in context.args for table in Path(run).glob("*.csv")})


@grouped
def show(
    runs: Runs,
    table: Annotated[
        list[str] | None,
        typer.Option(
            help="This table alone, of every run that has it; repeatable.",
            metavar="NAME",
            autocompletion=_tables_of,
        ),
        Excludes("theory"),
    ] = None,
    *,
    display: Display,
) -> None:
    """A finished run again: what its command printed.

    --format prints the main table instead, or those of --table: Markdown and LaTeX of any number,
    CSV and JSON of one. --theory adds which of the theory's assumptions hold.
    """
    with console.reported(display):
        require_folders(runs)
        from normprobe.run import load_run
        from normprobe.runs.run_folder import runs_below

        opened = [load_run(run) for folder in runs for run in runs_below(folder)]
        if table or display.format is not None:
            _show_tables(opened, table or [], display)
            return
        for run in opened:
            console.show_run(run, display)


def _show_tables(runs: "list[Run]", names: list[str], display: Display) -> None:
    """The main table of each run, or those that were named."""
    from normprobe.errors import did_you_mean
    from normprobe.report.table_text import latex, markdown
    from normprobe.report.terminal import print_readable

    held = list(dict.fromkeys(name for run in runs for name in run.tables))
    for name in names:
        if name not in held:
            raise NormprobeError(
                f"no run holds a table {name}",
                did_you_mean(name, held, f"they hold {', '.join(held)}"),
            )
    wanted = [(run, name) for run in runs for name in names or [run.main_table]]
    chosen = [(run, name) for run, name in wanted if name in run.tables]
    if display.format in ("csv", "json"):
        if len(chosen) != 1:
            raise NormprobeError(
                f"--format {display.format} prints one table, received {len(chosen)}",
                f"give one run and one --table: {', '.join(held)}",
            )
        run, name = chosen[0]
        if display.format == "json":
            console.run_object(run, run.tables[name])
        else:
            console.data(run.to_csv(name).removesuffix("\n"))
        return
    tables = [run.titled(name) for run, name in chosen]
    if display.format is not None:
        spelled = markdown if display.format == "md" else latex
        console.data("\n".join(map(spelled, tables)).removesuffix("\n"))
        return
    with console.stdout_console() as target:
        for table in tables:
            print_readable(table, target)


@grouped
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN RUN ...", help="Run folders of one command.", show_default=False
        ),
    ],
    label: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of a run, once for each in their order; a number is its step.",
            metavar="NAME",
        ),
    ] = None,
    *,
    output: Annotated[Output, Without("resume")],
    display: Annotated[Display, Without("theory")],
) -> None:
    """Runs of one command side by side: models, checkpoints, before and after (Figures 3-5)."""
    with console.reported(display):
        require_folders(runs)
        from normprobe.run import compare as compare_runs

        run = compare_runs(runs, label, **output.on_disk)
        for warning in run.record["warnings"]:
            console.message(f"warning: {warning}")
        console.show_run(run, display)


@grouped
def report(
    runs: Runs,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write.", metavar="FILE")
    ] = Path("report.html"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace that file.")] = False,
    *,
    display: Annotated[Display, only(Display, "quiet", "verbose")],
) -> None:
    """One page of any runs to read, play with, print and send: a single file, no network."""
    with console.reported(display):
        require_folders(runs)
        from normprobe.run import load_run, page_of
        from normprobe.runs.files import write_by_rename
        from normprobe.runs.run_folder import runs_below

        folders = [run for folder in runs for run in runs_below(folder)]
        if output.exists() and not overwrite:
            raise NormprobeError(f"{output} exists", "choose another --output or pass --overwrite")
        page = page_of([load_run(run) for run in folders])
        write_by_rename(output, page.encode("utf-8", errors="xmlcharrefreplace"))
        console.data(str(output))
