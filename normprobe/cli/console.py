"""The one place that writes to the terminal: data to stdout, messages to stderr."""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from normprobe.cli.options import Display
from normprobe.errors import NormprobeError, first_line

if TYPE_CHECKING:
    from rich.console import Console

    from normprobe.run import Run

FAILED, INTERRUPTED = 1, 130


def data(text: str) -> None:
    """Write a line of data to stdout."""
    typer.echo(text)


def message(text: str) -> None:
    """Write a line for the person at the terminal to stderr; only the first process writes."""
    if os.environ.get("RANK", "0") == "0":  # torchrun and accelerate number the processes
        typer.echo(text, err=True)


def stdout_console() -> "Console":
    """Where tables are printed. 80 columns when stdout is no terminal."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=80)


def show(run: "Run", display: Display) -> None:
    """Print the outcome of a command: its tables, what they say, and where everything is.

    Args:
        run: in a folder.
        display: ``quiet``: the folder alone; ``json``: the main table as JSON.
    """
    if display.quiet:
        data(str(run.path))
    elif display.json:
        from normprobe.runs.json_text import table_json

        data(table_json(run.table))
    else:
        run.show(stdout_console())
        message(f"Run folder: {run.path}")


@contextmanager
def reported(display: Display) -> Iterator[None]:
    """Turn what ends a command into a message and an exit code.

    A known failure ends with two lines and code 1, Ctrl-C with code 130. ``NORMPROBE_DEBUG=1``
    lets the traceback through.
    """
    if not display.verbose:
        _quiet_libraries()
    with _messages_of_the_package(logging.WARNING if display.quiet else logging.INFO):
        try:
            yield
        except KeyboardInterrupt:
            message("interrupted: what was measured is kept; --resume --output DIR goes on")
            raise typer.Exit(INTERRUPTED) from None
        except (NormprobeError, MemoryError, RuntimeError) as error:
            known = _known(error)
            if known is None or os.environ.get("NORMPROBE_DEBUG") == "1":
                raise
            typer.secho(f"error: {known.problem}", err=True, fg="red")
            typer.echo(f"       {known.remedy}", err=True)
            raise typer.Exit(FAILED) from None


class _Messages(logging.Handler):
    """Shows the package's log as it is: its warnings say so themselves."""

    def emit(self, record: logging.LogRecord) -> None:
        message(record.getMessage())


@contextmanager
def _messages_of_the_package(level: int) -> Iterator[None]:
    log, handler = logging.getLogger("normprobe"), _Messages(level)
    before, propagated = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(level)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
        log.propagate = propagated


def _known(error: BaseException) -> NormprobeError | None:
    if isinstance(error, NormprobeError):
        return error
    text = str(error)
    if isinstance(error, MemoryError) or "out of memory" in text or "can't allocate" in text:
        return NormprobeError(
            f"out of memory: {first_line(error) if text else 'no room for the model'}",
            "try --batch-size auto or a smaller one, --dtype bfloat16 or --device-map auto",
        )
    if "DataLoader worker" in text:
        return NormprobeError(
            f"a process that reads images was ended from outside: {first_line(error)}",
            "free some memory; --resume goes on from what is measured",
        )
    return None


def _quiet_libraries() -> None:
    """Loading bars and warnings of the libraries are messages that nobody asked for."""
    # What a checkpoint's own code calls will change one day: its user cannot change that.
    warnings.simplefilter("ignore", FutureWarning)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
