"""Plant each fault of tests/faults.toml in a copy of the code: the tests that it names must fail.

Run by `make faults`; `make faults FAULTS="bands runs"` plants those whose names begin so. A fault
lives where its tests pass all the same: they do not see what they are there for.
"""

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.live import Live
from rich.table import Column, Table

ROOT = Path(__file__).resolve().parent.parent
LOG = "faults.log"  # what the tests say, in the copy
SECONDS = 300  # that the tests of one fault may take
#: What an exit code of pytest says. All others, such as that of tests that cannot be imported or of
#: names that no test has, say nothing of the fault.
STATES = {0: "LIVES", 1: "killed"}


def main(beginnings: Sequence[str]) -> int:
    chosen = [fault for fault in faults() if fault["name"].startswith(tuple(beginnings or [""]))]
    table = Table("fault", Column("tests", overflow="fold"), "", "seconds")
    with tempfile.TemporaryDirectory() as folder, Live(table):
        copy = Path(folder)
        copy_code(copy)
        prepare(copy)
        tests = sorted({test for fault in chosen for test in fault["killed_by"]})
        seconds, code = ended(tests, copy, limit=None)
        table.add_row("none", "all of these", "pass" if code == 0 else f"END WITH {code}", seconds)
        sys.dont_write_bytecode = True  # a file that changes twice a second has one time
        states = [] if code != 0 else [tried(fault, copy, table) for fault in chosen]
        if code != 0:
            sys.stderr.write((copy / LOG).read_text(encoding="utf-8"))
    return int(set(states) != {"killed"})


def faults() -> list[dict[str, Any]]:
    """The faults, in order."""
    return list(tomllib.loads((ROOT / "tests/faults.toml").read_text(encoding="utf-8"))["fault"])


def planted(fault: dict[str, Any], sound: str) -> str:
    """The text of its file with the fault.

    Raises:
        ValueError: what it replaces is not there, or more than once.
    """
    if (found := sound.count(fault["from"])) != 1:
        raise ValueError(f"{fault['name']}: {fault['file']} holds what it replaces {found} times")
    return sound.replace(fault["from"], fault["to"])


def tried(fault: dict[str, Any], copy: Path, table: Table) -> str:
    """Whether the tests of a fault kill it, as a row of the table."""
    file = copy / "normprobe" / fault["file"]
    sound = file.read_text(encoding="utf-8")
    file.write_text(planted(fault, sound), encoding="utf-8")
    seconds, code = ended(fault["killed_by"], copy)
    file.write_text(sound, encoding="utf-8")
    state = STATES.get(code, f"END WITH {code}")
    table.add_row(fault["name"], "\n".join(fault["killed_by"]), state, seconds)
    return state


def copy_code(folder: Path) -> None:
    """What git does not ignore, as it is on the disk."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def prepare(copy: Path) -> None:
    """Import once what is slow, for the processes that are forked from this one."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(copy)}
    import datasets  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401


def ended(
    tests: Sequence[str], copy: Path, limit: float | None = SECONDS
) -> tuple[str, int | None]:
    """How long tests ran in the copy, and their exit code; None: they did not end."""
    began = time.monotonic()
    process = multiprocessing.get_context("fork").Process(target=run, args=(tests, copy))
    process.start()
    process.join(limit)
    process.kill()
    return f"{time.monotonic() - began:.0f}", process.exitcode


def run(tests: Sequence[str], copy: Path) -> None:
    os.chdir(copy)
    with (copy / LOG).open("wb") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    sys.exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
