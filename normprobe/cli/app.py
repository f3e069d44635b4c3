"""The application: which commands there are."""

import gc
from collections.abc import Callable
from typing import Annotated

import typer

import normprobe
from normprobe.cli import console, gate, measure, models, paper, runs
from normprobe.cli.grouping import Command, Commands
from normprobe.console_state import has_colour
from normprobe.measurements import measurements

COMMANDS: dict[str, Callable[..., None]] = {
    **{of.name: measure.command_of(of) for of in measurements() if of.over_samples},
    "check": gate.check,
    "embeddings": measure.embeddings,
    "attention": measure.attention,
    "show": runs.show,
    "compare": runs.compare,
    "verify": runs.verify,
    "survey": models.survey,
    "inspect": models.inspect,
    "inputs": models.inputs,
    "watch": models.watch,
    "align": measure.align,
    "report": runs.report,
    "card": runs.card,
    "atlas": runs.atlas,
    "paper": paper.paper,
    "demo": measure.demo,
}

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name, command in COMMANDS.items():
    app.command(name, cls=Command)(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"normprobe {normprobe.__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """What the norms of visual and text tokens do inside a multimodal LLM."""


def main() -> None:
    """Run the command line."""
    console.open_closed_streams()
    if not has_colour():
        from typer import rich_utils  # of help and usage errors

        rich_utils.COLOR_SYSTEM = None
    try:
        app(prog_name="normprobe")
    except SystemExit as end:
        if isinstance(end.code, int) and (end.code == console.INTERRUPTED or gc.get_freeze_count()):
            console.leave(end.code)
        raise
