"""The command ``watch``."""

import tomllib
from importlib.resources import files
from typing import Annotated, Literal

import typer

from normprobe.cli import console
from normprobe.cli.grouping import Display, grouped, only


@grouped
def watch(
    snippet: Annotated[
        Literal["trl", "swift", "axolotl", "llamafactory", "lightning", "loop"],
        typer.Option(
            help="What runs the training: trl, swift, axolotl, llamafactory, lightning; loop: your "
            "own, or accelerate.",
            metavar="NAME",
        ),
    ] = "loop",
    *,
    display: Annotated[Display, only(Display, "quiet")],
) -> None:
    """The lines that watch a training from inside: norms, gradients, alarms."""
    with console.reported(display):
        lines = tomllib.loads((files(__package__) / "snippets.toml").read_text("utf-8"))
        console.data(lines[snippet].strip())
