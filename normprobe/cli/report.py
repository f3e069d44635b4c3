"""``normprobe report``."""

from pathlib import Path
from typing import Annotated

import typer

from normprobe.cli import console
from normprobe.cli import options as opt


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write.", metavar="FILE")
    ] = Path("report.html"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace that file.")] = False,
    verbose: opt.Verbose = False,
) -> None:
    """One page of any runs to read, play with, print and send: a single file, no network."""
    with console.reported(verbose):
        from normprobe.errors import NormprobeError
        from normprobe.report.atomic import write_by_rename
        from normprobe.report.html import page

        if output.exists() and not overwrite:
            raise NormprobeError(f"{output} exists", "choose another --output or pass --overwrite")
        write_by_rename(output, page(runs).encode("utf-8", errors="xmlcharrefreplace"))
        console.data(str(output))
