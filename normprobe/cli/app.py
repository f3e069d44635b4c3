"""The application: which commands there are."""

from collections.abc import Callable
from typing import Annotated

import typer

import normprobe
from normprobe.cli import (
    align,
    attention,
    compare,
    console,
    demo,
    embeddings,
    inspect,
    models,
    paper,
    report,
    survey,
    verify,
)
from normprobe.cli.over_samples import command_of
from normprobe.console_state import has_colour
from normprobe.measurements import measurements

COMMANDS: dict[str, Callable[..., None]] = {
    **{offered.name: command_of(offered) for offered in measurements() if offered.over_samples},
    "embeddings": embeddings.embeddings,
    "attention": attention.attention,
    "compare": compare.compare,
    "verify": verify.verify,
    "survey": survey.survey,
    "inspect": inspect.inspect,
    "align": align.align,
    "report": report.report,
    "paper": paper.paper,
    "models": models.models,
    "demo": demo.demo,
}

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name, command in COMMANDS.items():
    app.command(name)(command)


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
        if end.code == console.INTERRUPTED:
            console.leave_at_once()
        raise
