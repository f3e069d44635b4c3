"""``normprobe compare``."""

from pathlib import Path
from typing import Annotated

import typer

from normprobe.cli import console
from normprobe.cli.options import Display, RunFolderOptions, Without, grouped


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
        typer.Option(help="Name of a run, once for each in their order; a number is its step."),
    ] = None,
    *,
    folder: Annotated[RunFolderOptions, Without("resume")],
    display: Display,
) -> None:
    """Runs of one command side by side: models, checkpoints, before and after (Figures 3-5)."""
    with console.reported(display):
        from normprobe.run import compare as compare_runs
        from normprobe.runs.begin import AUTO

        run = compare_runs(runs, label, output=folder.output or AUTO, overwrite=folder.overwrite)
        for warning in run.record["warnings"]:
            console.message(f"warning: {warning}")
        console.show(run, display)
