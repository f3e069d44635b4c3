"""The one sink: data goes to stdout, talk to stderr."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import typer

from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

Mode = Literal["tables", "json", "quiet"]
T = TypeVar("T")

FAILED, INTERRUPTED = 1, 130


def mode_of(json: bool, quiet: bool) -> Mode:
    """What goes to stdout: the folder alone, the table as JSON, or tables to read."""
    return "quiet" if quiet else "json" if json else "tables"


def data(text: str) -> None:
    """Write a line of data to stdout."""
    typer.echo(text)


def talk(text: str) -> None:
    """Write a line for the person at the terminal to stderr; of several processes, the first."""
    if os.environ.get("RANK", "0") == "0":  # torchrun and accelerate number them
        typer.echo(text, err=True)


def stdout_console() -> "Console":
    """Where tables are printed. 80 columns when stdout is no terminal."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=80)


def progress(rows: Iterable[T], *, total: int, what: str, shown: bool = True) -> Iterator[T]:
    """Pass rows on and show how far it is, on a terminal only."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(
        rows,
        description=what,
        total=total,
        console=console,
        disable=not (shown and console.is_terminal),
    )


def show(
    folder: Path,
    table: "pd.DataFrame",
    print_table: "Callable[[pd.DataFrame, Console], None]",
    sentence: str,
    mode: Mode,
    then: "Callable[[Console], None] | None" = None,
) -> None:
    """Print the outcome of a command: the table, what it says, and where everything is.

    ``then`` prints more below what the table says.
    """
    if mode == "quiet":
        data(str(folder))
    elif mode == "json":
        from normprobe.report.tables import to_json

        data(to_json(table))
    else:
        target = stdout_console()
        print_table(table, target)
        say(sentence, target)
        if then is not None:
            then(target)
        show_published(folder)
        talk(f"Run folder: {folder}")


def say(sentence: str, target: "Console") -> None:
    """Print what a table says, in words; nothing where it says nothing."""
    if sentence:
        target.print(f"{sentence}\n", markup=False, highlight=False)


def show_published(folder: Path) -> None:
    """Print what the paper says of the model, where it says something."""
    from normprobe.report.beside_paper import PUBLISHED, print_published
    from normprobe.report.run_dir import read_table

    if (folder / f"{PUBLISHED}.csv").is_file():
        print_published(read_table(folder, PUBLISHED), stdout_console())


@contextmanager
def reported(verbose: bool) -> Iterator[None]:
    """Turn what ends a command into a message and an exit code.

    A known failure ends with two lines and code 1, Ctrl-C with code 130. ``NORMPROBE_DEBUG=1``
    lets the traceback through.
    """
    if not verbose:
        _quiet_libraries()
    try:
        yield
    except KeyboardInterrupt:
        talk("interrupted: what was measured is kept; --resume --output DIR goes on")
        raise typer.Exit(INTERRUPTED) from None
    except (NormprobeError, MemoryError, RuntimeError) as error:
        known = _known(error)
        if known is None or os.environ.get("NORMPROBE_DEBUG") == "1":
            raise
        typer.secho(f"error: {known.problem}", err=True, fg="red")
        typer.echo(f"       {known.remedy}", err=True)
        raise typer.Exit(FAILED) from None


def _known(error: BaseException) -> NormprobeError | None:
    if isinstance(error, NormprobeError):
        return error
    text = str(error)
    first_line = (text.splitlines() or ["no room for the model"])[0]
    if isinstance(error, MemoryError) or "out of memory" in text or "can't allocate" in text:
        return NormprobeError(
            f"out of memory: {first_line}",
            "try --batch-size auto or a smaller one, --dtype bfloat16 or --device-map auto",
        )
    if "DataLoader worker" in text:
        return NormprobeError(
            f"a process that reads images was ended from outside: {first_line}",
            "free some memory; --resume goes on from what is measured",
        )
    return None


def _quiet_libraries() -> None:
    """Loading bars and warnings of the libraries are talk that nobody asked for."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
