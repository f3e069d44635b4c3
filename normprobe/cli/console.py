"""The one place that writes to the terminal: data to stdout, messages to stderr.

Names of samples, files and models come from strangers: what is written passes ``visible``. While a
command runs, what anybody else prints goes to stderr: a model's own code may print whenever it
runs, and stdout is data.
"""

import atexit
import gc
import logging
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer

from normprobe.cli.grouping import Display
from normprobe.console_state import has_colour, interrupting, just_ending
from normprobe.errors import NormprobeError, visible

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from normprobe.run import Run

FAILED, INTERRUPTED = 1, 130

#: The stdout of the command that runs; ``sys.stdout`` is stderr meanwhile.
_STDOUT: ContextVar[TextIO | None] = ContextVar("stdout", default=None)
#: Of the command that runs: ``--quiet``.
_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)


@contextmanager
def lasting_imports() -> Iterator[None]:
    """Import torch and what needs it, inside the block, out of the garbage collector's sight.

    They make 700,000 objects, and none goes before the command ends. Python would walk them all
    many times over: while it imports, while the command works and once more at the end, which
    ``leave`` does without. That is a third of the time of a short command.
    """
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        with just_ending():
            yield
        gc.freeze()
        # Where Python does end by itself, libraries that count what is left (nanobind) find none.
        atexit.register(gc.unfreeze)
    finally:
        gc.enable()


def open_closed_streams() -> None:
    """Give a command that was started with ``>&-`` or ``2>&-`` streams that lead nowhere.

    Otherwise the next file to be opened is what libraries take for stdout.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115


def leave(code: int) -> NoReturn:
    """End the process as it is: to take down what is loaded takes Python seconds."""
    if code != INTERRUPTED:  # then nothing is waited for
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def data(text: str) -> None:
    """Write a line of data to stdout: as it is for a program, ``visible`` for a person."""
    file = _stdout()
    with _writing():
        plain = text.encode(errors="backslashreplace").decode()  # names of files may be no UTF-8
        typer.echo(visible(text, keep="\n\t") if file.isatty() else plain, file=file)


def table(content: "pd.DataFrame", display: Display) -> bool:
    """Write a table to stdout where it was asked for as data.

    Returns:
        Whether it was asked for: then nothing else is to be printed.
    """
    if display.format == "json":
        json_object(table=content)
    elif display.format is None:
        return False
    else:
        from normprobe.report.table_text import table_text

        data(table_text(content, display.format).removesuffix("\n"))
    return True


def json_object(**entries: Any) -> None:
    """Write one JSON object to stdout; a table in it is a list of its rows."""
    from normprobe.runs.files import json_text

    data(json_text(entries).removesuffix("\n"))


def message(text: str) -> None:
    """Write a line for the person at the terminal to stderr, unless ``--quiet``."""
    if not _QUIET.get():
        _tell_once(text)


def _tell_once(text: str) -> None:
    """Write a line to stderr; only the first process writes."""
    if os.environ.get("RANK", "0") == "0":  # torchrun and accelerate number the processes
        _to_stderr(visible(text, keep="\n\t"))


@contextmanager
def stdout_console() -> "Iterator[Console]":
    """Where tables are printed."""
    from normprobe.report.terminal import terminal_console

    file = _stdout()
    with _writing():
        yield terminal_console(file)
        file.flush()


def show_run(run: "Run", display: Display, doubts: Sequence[str] = ()) -> None:
    """Print the outcome of a command: its tables, what they say, and where everything is.

    Args:
        run: what it made.
        display: how.
        doubts: for which the command then fails, of ``--strict``.
    """
    failure = NormprobeError(
        f"the numbers are in doubt: {'; '.join(doubts)}",
        f"run.json in {run.path} lists all warnings; without --strict the numbers stand",
    )
    if display.quiet:
        data(str(run.path))
    elif display.format == "json":
        run_object(run, run.table, **({"error": _entries(failure)} if doubts else {}))
    elif display.format is not None:
        text = {"csv": run.to_csv, "md": run.to_markdown, "tex": run.to_latex}[display.format]()
        data(text.removesuffix("\n"))
    else:
        with stdout_console() as console:
            run.show(console, theory=display.theory)
        if run.has_theory and not display.theory:
            message(f"does the paper's theory hold here? normprobe show {run.path} --theory")
        message(f"run folder: {run.path}")
    if doubts:
        tell(failure)
        raise typer.Exit(FAILED)


def run_object(run: "Run", content: "pd.DataFrame", **more: Any) -> None:
    """Write a run as the one JSON object of ``--format json``, with one of its tables."""
    where = None if run.path is None else str(run.path)
    json_object(command=run.command, folder=where, **run.verdict.entries(), **more, table=content)


@contextmanager
def reported(display: Display, *, resumes: bool = False) -> Iterator[None]:
    """Turn what ends a command into a message and an exit code; keep stdout for data.

    A known failure ends with two lines and code 1, for ``--format json`` also with an object on
    stdout; Ctrl-C with code 130. ``NORMPROBE_DEBUG=1`` lets the traceback through.
    """
    if not display.verbose:
        _quiet_libraries()
    level = logging.ERROR if display.quiet else logging.INFO
    before = _QUIET.set(display.quiet)
    with _messages_of_the_package(level), _stdout_is_data():
        try:
            with interrupting():
                _require_working_folder()
                yield
        except KeyboardInterrupt as interrupt:
            folder: Path | None = getattr(interrupt, "folder", None)
            _tell_once("interrupted" + (f": what was measured is in {folder}" if folder else ""))
            if folder is not None:
                _tell_once(f"             to go on: {_resuming(folder)}")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            from normprobe.failures import known_failure

            known = known_failure(error, resumes=resumes)
            if known is None or os.environ.get("NORMPROBE_DEBUG") == "1":
                raise
            if display.format == "json":
                json_object(error=_entries(known))
            tell(known)
            raise typer.Exit(FAILED) from None
        finally:
            _QUIET.reset(before)


def _require_working_folder() -> None:
    """Libraries look it up when they are loaded, and end the process without it."""
    try:
        Path.cwd()
    except OSError:
        raise NormprobeError(
            "the working folder is not there any more", "change into a folder that is: cd"
        ) from None


def tell(failure: NormprobeError) -> None:
    """Write what is wrong and what to do about it to stderr."""
    problem = f"error: {failure.problem}"
    _to_stderr(typer.style(problem, fg="red") if has_colour() else problem)
    _to_stderr(f"       {failure.remedy}")


def _entries(failure: NormprobeError) -> dict[str, str]:
    return {"problem": failure.problem, "remedy": failure.remedy}


def _resuming(folder: Path) -> str:
    """The command that goes on with the run in a folder: the one that was typed, and --resume."""
    if os.environ.get("WORLD_SIZE", "1") != "1":  # the launcher's own words are not among these
        return f"start all processes as before, with {shlex.join(['-o', str(folder)])} --resume"
    words = [word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")]
    named = any(word.startswith(("-o", "--output")) for word in words)
    return shlex.join(["normprobe", *words, *([] if named else ["-o", str(folder)]), "--resume"])


def _to_stderr(text: str) -> None:
    with suppress(OSError):  # a full disk or a closed pipe: there is nobody left to tell
        typer.echo(text, err=True)


@contextmanager
def _writing() -> Iterator[None]:
    """Explain why stdout takes no more."""
    try:
        yield
    except OSError as error:
        if isinstance(error, BrokenPipeError) or error.filename is not None:
            raise  # a reader that has seen enough (`| head`), or another file
        # What is left in the buffer would fail again when Python ends.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), _stdout().fileno())
        raise NormprobeError(
            f"cannot write to standard output: {error.strerror or error}",
            "send it elsewhere; a run folder that was written is complete",
        ) from error


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
        _tell_once(record.getMessage())


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


def _quiet_libraries() -> None:
    """Loading bars and warnings of the libraries are messages that nobody asked for."""
    # What a checkpoint's own code calls will change one day: its user cannot change that.
    warnings.simplefilter("ignore", FutureWarning)
    for published in ("transformers_modules", "timm"):
        warnings.filterwarnings("ignore", module=published)
    logging.getLogger("transformers_modules").setLevel(logging.ERROR)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
