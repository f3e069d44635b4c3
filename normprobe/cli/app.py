"""The application: which commands there are."""

import gc
from collections.abc import Callable, Iterable, Iterator
from inspect import cleandoc
from typing import Annotated

import typer

import normprobe
from normprobe.cli import console, measure, runs
from normprobe.cli.grouping import Command, Commands
from normprobe.console_state import has_colour
from normprobe.measurements import CORE
from normprobe.measurements.measurement import Measurement, SampleMeasurement
from normprobe.registry import COMPARE, MAKE, MEASURE, SHARE, Extension, answers, leave_out

#: Those of the core by panel of ``--help``; extensions add theirs.
_PANELS: dict[str, dict[str, Callable[..., None]]] = {
    MEASURE: {"embeddings": measure.embeddings, "inspect": measure.inspect},
    COMPARE: {
        "show": runs.show,
        "compare": runs.compare,
        "report": runs.report,
    },
    SHARE: {},
    MAKE: {"align": measure.align, "demo": measure.demo},
}


def all_commands() -> Iterator[tuple[str, str, Callable[..., None]]]:
    """Panel, name and function of each command; what the core names is no extension's."""
    known = _PANELS | {MEASURE: {**dict(_over_samples(CORE)), **_PANELS[MEASURE]}}
    taken = {name for of in known.values() for name in of}
    for extension, commands in answers(_commands_of):
        new = {name: command for name, command in commands.items() if name not in taken}
        known.setdefault(extension.panel, {}).update(new)
        taken |= set(new)
    for panel, of in known.items():
        for name, command in of.items():
            yield panel, name, command


def _commands_of(extension: Extension) -> dict[str, Callable[..., None]]:
    """By name; a stranger's that typer cannot take costs a warning."""
    offered = {**dict(_over_samples(extension.measurements())), **extension.commands()}
    if type(extension).__module__.startswith(f"{normprobe.__name__}."):
        return offered  # tests have tried them: a tenth of the start is saved
    taken = {}
    for name, command in offered.items():
        try:
            alone = typer.Typer()
            alone.command(name, cls=Command)(command)
            typer.main.get_command(alone)
            if "[" in (command.__doc__ or ""):
                _require_markup(cleandoc(command.__doc__ or ""))
        except Exception as error:  # a stranger's annotations and words may be anything
            leave_out(f"the command {name} of {type(extension).__module__}", error)
        else:
            taken[name] = command
    return taken


def _require_markup(text: str) -> None:
    """Raise an error where ``--help`` cannot show a text."""
    from rich.markup import render

    render(text)


def _over_samples(
    offered: Iterable[Measurement],
) -> Iterator[tuple[str, Callable[..., None]]]:
    for each in offered:
        if isinstance(each, SampleMeasurement) and not each.asked_of:
            yield each.name, measure.command_of(each)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, Callable[..., None]] = {}
for panel, name, command in all_commands():
    COMMANDS[name] = command
    app.command(name, cls=Command, rich_help_panel=panel)(command)


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
