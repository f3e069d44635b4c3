"""The one place that writes to the terminal: data to stdout, messages to stderr.

While a command runs, what anybody else prints goes to stderr: a model's own code may print whenever
it runs, and stdout is data.
"""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import TYPE_CHECKING, TextIO

import typer

from normprobe.cli.options import Display
from normprobe.errors import NormprobeError, first_line

if TYPE_CHECKING:
    from rich.console import Console

    from normprobe.run import Run

FAILED, INTERRUPTED = 1, 130

#: The stdout of the command that runs; ``sys.stdout`` is stderr meanwhile.
_STDOUT: ContextVar[TextIO | None] = ContextVar("stdout", default=None)


def data(text: str) -> None:
    """Write a line of data to stdout."""
    typer.echo(text, file=_stdout())


def message(text: str) -> None:
    """Write a line for the person at the terminal to stderr; only the first process writes."""
    if os.environ.get("RANK", "0") == "0":  # torchrun and accelerate number the processes
        typer.echo(text, err=True)


def stdout_console() -> "Console":
    """Where tables are printed. 80 columns when stdout is no terminal."""
    from rich.console import Console

    file = _stdout()
    return Console(file=file) if file.isatty() else Console(file=file, width=80)


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
def reported(display: Display, *, resumes: bool = False) -> Iterator[None]:
    """Turn what ends a command into a message and an exit code; keep stdout for data.

    A known failure ends with two lines and code 1, Ctrl-C with code 130. ``NORMPROBE_DEBUG=1``
    lets the traceback through.

    Args:
        display: how much is said.
        resumes: whether ``--resume`` goes on with what the command leaves behind.
    """
    if not display.verbose:
        _quiet_libraries()
    level = logging.WARNING if display.quiet else logging.INFO
    with _messages_of_the_package(level), _stdout_is_data():
        try:
            yield
        except KeyboardInterrupt:
            kept = ": what was measured is kept; --resume goes on"
            message(f"interrupted{kept if resumes else ''}")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            known = _known(error, resumes)
            if known is None or os.environ.get("NORMPROBE_DEBUG") == "1":
                raise
            typer.secho(f"error: {known.problem}", err=True, fg="red")
            typer.echo(f"       {known.remedy}", err=True)
            raise typer.Exit(FAILED) from None


def _stdout() -> TextIO:
    return _STDOUT.get() or sys.stdout


@contextmanager
def _stdout_is_data() -> Iterator[None]:
    token = _STDOUT.set(_stdout())
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _STDOUT.reset(token)


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


def _known(error: BaseException, resumes: bool) -> NormprobeError | None:
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
            "free some memory" + "; --resume goes on from what is measured" * resumes,
        )
    return _of_foreign_code(error)


def _of_foreign_code(error: BaseException) -> NormprobeError | None:
    """An exception that a checkpoint's own code raised; None: it was another's."""
    from normprobe.code_failures import raised_in_own_code

    place = raised_in_own_code(error)
    if place is None:
        return None
    return NormprobeError(
        f"the model's own code fails in {place}: {type(error).__name__}: {first_line(error)}",
        "it may need another version of transformers or a package; NORMPROBE_DEBUG=1 shows the "
        "traceback",
    )


def _quiet_libraries() -> None:
    """Loading bars and warnings of the libraries are messages that nobody asked for."""
    # What a checkpoint's own code calls will change one day: its user cannot change that.
    warnings.simplefilter("ignore", FutureWarning)
    warnings.filterwarnings("ignore", module="transformers_modules")
    logging.getLogger("transformers_modules").setLevel(logging.ERROR)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
