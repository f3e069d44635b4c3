"""``normprobe report``."""

from pathlib import Path
from typing import Annotated

import typer

from normprobe.cli import console
from normprobe.cli.options import Display, grouped, only


@grouped
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write.", metavar="FILE")
    ] = Path("report.html"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace that file.")] = False,
    *,
    display: Annotated[Display, only(Display, "verbose")],
) -> None:
    """One page of any runs to read, play with, print and send: a single file, no network."""
    with console.reported(display):
        from normprobe.errors import NormprobeError
        from normprobe.run import load_run, page_of
        from normprobe.runs.atomic import write_by_rename

        if output.exists() and not overwrite:
            raise NormprobeError(f"{output} exists", "choose another --output or pass --overwrite")
        page = page_of([load_run(run) for run in runs])
        write_by_rename(output, page.encode("utf-8", errors="xmlcharrefreplace"))
        console.data(str(output))
