"""What may not grow: lines and files of the package, and what one sample enters on its way.

Part of `make check`. Limits stand in pyproject.toml: one that is passed ends with 1; lower them
when the package becomes smaller.
"""

import contextlib
import io
import os
import re
import sys
import tempfile
import threading
import tomllib
from collections.abc import Iterator
from inspect import CO_OPTIMIZED
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

import grimp
from rich.console import Console
from rich.table import Column, Table

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "normprobe"
Entered = dict[int, list[tuple[str, str]]]


def main() -> int:
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["normprobe"]
    now = size() | added() | {"modules that nothing imports": len(unused())} | one_sample()
    table = Table("", Column("now", justify="right"), Column("limit", justify="right"))
    for what, limit in limits["budget"].items():
        style = "bold red" if now[what] > limit else ""
        table.add_row(what, f"{now[what]:,}", f"{limit:,}", style=style)
    Console().print(table)
    return int(any(now[what] > limit for what, limit in limits["budget"].items()))


def size() -> dict[str, int]:
    """Files and lines of the core and of all extensions together."""
    extensions = [*(PACKAGE / "extensions").rglob("*.py")]
    core = [file for file in PACKAGE.rglob("*.py") if file not in extensions]
    found = {}
    for what, files in (("core", core), ("extensions", extensions)):
        found[f"files of the {what}"] = len(files)
        found[f"lines of the {what}"] = sum(
            file.read_text(encoding="utf-8").count("\n") for file in files
        )
    return found


def added() -> dict[str, int]:
    """Files of what a test adds to the package, and proves to be whole."""
    sys.path.insert(0, str(ROOT / "tests"))
    from measurements.test_new_measurement import FOLDER
    from measurements.test_new_quantity import FILES

    return {
        "files of a new measurement": len(FOLDER) + 1,  # its class in CORE
        "files of a new quantity": len(FILES),
    }


def unused() -> set[str]:
    """Modules that are part of the wheel, but are neither imported nor named in quotes."""
    graph = grimp.build_graph("normprobe")
    alone = {
        module
        for module in graph.modules
        if not graph.find_children(module) and not graph.find_modules_that_directly_import(module)
    }
    text = "".join(file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py")).lower()
    named = set(re.findall(r"""["'.](\w+)["']""", text)) | {"__main__"}
    return {module for module in alone if module.rpartition(".")[2] not in named}


def one_sample() -> dict[str, int]:
    """Files and functions that one sample enters in `layers`, and how often the file changes."""
    from normprobe.cli.app import app

    entered: Entered = {}
    command = ["layers", "specimen", "--limit", "1", "--output"]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        stack.enter_context(calls(entered))
        app([*command, f"{folder}/run"], standalone_mode=False)
    files = [[file for file, _ in of_thread] for of_thread in entered.values()]
    return {
        "files that one sample enters": len(set(chain(*files))),
        "functions that one sample enters": len(set(chain(*entered.values()))),
        # Of each thread by itself: in which order threads take turns is chance.
        "moves between files": sum(sum(map(str.__ne__, each, each[1:])) for each in files),
    }


@contextlib.contextmanager
def calls(entered: Entered) -> Iterator[None]:
    """Each call of a function of the package, as its file and name, in order, by thread."""
    package = f"{PACKAGE}{os.sep}"

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if (
            event == "call"
            and code.co_filename.startswith(package)
            and code.co_flags & CO_OPTIMIZED  # neither the body of a module nor of a class
            and not code.co_name.startswith("<")  # nor a comprehension
        ):
            of_thread = entered.setdefault(threading.get_ident(), [])
            of_thread.append((code.co_filename, code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


if __name__ == "__main__":
    sys.exit(main())
