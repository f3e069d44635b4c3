"""``normprobe report``."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normprobe.cli import console
from normprobe.cli.options import Display, Excludes, Needs, grouped, only

if TYPE_CHECKING:
    from normprobe.report.table_text import Format
    from normprobe.run import Run


@grouped
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of run folders.")
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="The file to write.", metavar="FILE"),
        Excludes("format", "json"),
    ] = Path("report.html"),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace that file."), Excludes("format", "json")
    ] = False,
    table: Annotated[
        list[str] | None,
        typer.Option(
            help="A table for --format to print; repeatable. Default: all.", metavar="NAME"
        ),
        Needs("format", "json"),
    ] = None,
    *,
    display: Annotated[Display, only(Display, "format", "json", "verbose")],
) -> None:
    """One page of any runs to read, play with, print and send: a single file, no network.

    --format prints the tables of the runs in place of it: Markdown and LaTeX of any number, CSV and
    JSON of one; --json those of all, with what they say.
    """
    with console.reported(display):
        from normprobe.errors import NormprobeError
        from normprobe.run import load_run, page_of
        from normprobe.runs.files import write_by_rename
        from normprobe.runs.run_folder import runs_below

        folders = [run for folder in runs for run in runs_below(folder)]
        if display.json:
            opened = [load_run(run) for run in folders]
            tables: dict[Run, dict[str, object]] = {run: {} for run in opened}
            for run, name in _chosen(opened, table or []):
                tables[run][name] = run.tables[name]
            held = [{**console.told(run), "tables": tables[run]} for run in opened]
            console.json_object(runs=held)
            return
        if display.format is not None:
            text = _tables_as(display.format, [load_run(run) for run in folders], table or [])
            console.data(text.removesuffix("\n"))
            return
        if output.exists() and not overwrite:
            raise NormprobeError(f"{output} exists", "choose another --output or pass --overwrite")
        page = page_of([load_run(run) for run in folders])
        write_by_rename(output, page.encode("utf-8", errors="xmlcharrefreplace"))
        console.data(str(output))


def _held(runs: "Sequence[Run]") -> list[str]:
    """The names of all tables of some runs."""
    return list(dict.fromkeys(name for run in runs for name in run.tables))


def _chosen(runs: "Sequence[Run]", names: Sequence[str]) -> "list[tuple[Run, str]]":
    """The tables of some runs, those of ``names`` alone where there are any."""
    from normprobe.errors import NormprobeError

    held = _held(runs)
    for name in names:
        if name not in held:
            raise NormprobeError(f"no run holds a table {name}", f"they hold {', '.join(held)}")
    return [(run, name) for run in runs for name in run.tables if name in (names or held)]


def _tables_as(form: "Format", runs: "Sequence[Run]", names: Sequence[str]) -> str:
    """The tables of some runs, those of ``names`` alone where there are any."""
    from normprobe.errors import NormprobeError, visible
    from normprobe.report.page.document import run_title
    from normprobe.report.table_text import latex, markdown, table_text

    chosen = _chosen(runs, names)
    if form in ("csv", "json"):
        if len(chosen) != 1:
            raise NormprobeError(
                f"--format {form} prints one table, received {len(chosen)}",
                f"give one run and one --table: {', '.join(_held(runs))}",
            )
        (run, name), *_ = chosen
        return table_text(run.tables[name], form)
    spelled = markdown if form == "md" else latex
    tables = (
        (visible(f"{run_title(run.store)}, {name}"), run.readable(name)) for run, name in chosen
    )
    return "\n".join(spelled(replace(table, title=table.title or title)) for title, table in tables)
