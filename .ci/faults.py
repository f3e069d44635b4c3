"""Plant the faults of tests/faults.toml in a copy of the code: the fast tests named must fail.

Run by `make faults`; `make faults FAULTS="bands runs"` plants those whose names begin so. A fault
lives where its tests pass all the same: they do not see what they are there for.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.live import Live
from rich.table import Column, Table

ROOT = Path(__file__).resolve().parent.parent
LOG = "faults.log"  # what the tests say, in the copy
FAILED = "failed.txt"  # and which fail, a line each
SECONDS = 300  # that the tests of one fault may take
COPIES = 2  # faults are planted side by side
#: What an exit code of pytest says. All others, such as that of tests that cannot be imported or of
#: names that no test has, say nothing of the fault.
STATES = {0: "LIVES", 1: "killed"}
FORK = get_context("fork")


class Tried(NamedTuple):
    """What became of a fault."""

    fault: dict[str, Any]
    state: str
    failed: list[str]  # the tests that fail
    seconds: float


def main(beginnings: Sequence[str]) -> int:
    table = Table("fault", Column("tests", overflow="fold"), "", "seconds")
    prepare()
    tests = sorted({test for fault in chosen(beginnings) for test in fault["killed_by"]})
    with Live(table):
        (without,) = all_tried([{"name": "none", "killed_by": tests}])
        sound = without.state == "LIVES"
        table.add_row("none", "all of these", "pass" if sound else "fail", f"{without.seconds:.0f}")
        if not sound:
            sys.stderr.write("\n".join(["without a fault these fail:", *without.failed, ""]))
            return 1
        states = set()
        for fault, state, failed, seconds in all_tried(chosen(beginnings)):
            shown = "\n".join(failed or fault["killed_by"])
            table.add_row(fault["name"], shown, state, f"{seconds:.0f}")
            states.add(state)
    return int(states != {"killed"})


def faults() -> list[dict[str, Any]]:
    """The faults, in order."""
    return list(tomllib.loads((ROOT / "tests/faults.toml").read_text(encoding="utf-8"))["fault"])


def chosen(beginnings: Sequence[str]) -> list[dict[str, Any]]:
    """The faults whose names begin so; without beginnings all."""
    return [fault for fault in faults() if fault["name"].startswith(tuple(beginnings or [""]))]


def planted(fault: dict[str, Any], sound: str) -> str:
    """The text of its file with the fault.

    Raises:
        ValueError: what it replaces is not there, or more than once.
    """
    if (found := sound.count(fault["from"])) != 1:
        raise ValueError(f"{fault['name']}: {fault['file']} holds what it replaces {found} times")
    return sound.replace(fault["from"], fault["to"])


def all_tried(these: Sequence[dict[str, Any]], *options: str) -> Iterator[Tried]:
    """Try faults in copies of the code, as they end.

    Args:
        these: the faults; one without a file leaves the code as it is.
        options: of pytest, for all of their tests; without any the first that fails is enough.

    Raises:
        ValueError: as ``planted``.
    """
    for fault in these:
        if "file" in fault:  # before anything is tried: a copy that fails would be waited for
            planted(fault, (ROOT / "normprobe" / fault["file"]).read_text(encoding="utf-8"))
    ended = FORK.SimpleQueue()
    for copy in range(COPIES):
        share = these[copy::COPIES]
        FORK.Process(target=work, args=(share, ended, options or ("-x",))).start()
    for _ in these:
        yield ended.get()


def work(these: Sequence[dict[str, Any]], ended: Any, options: Sequence[str]) -> None:
    """Try one fault after the other in a copy of its own."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        copy_code(copy)
        os.environ["PYTHONPATH"] = folder
        for fault in these:
            ended.put(tried(fault, copy, options))


def tried(fault: dict[str, Any], copy: Path, options: Sequence[str]) -> Tried:
    """Whether the tests of a fault kill it."""
    began = time.monotonic()
    file = copy / "normprobe" / fault.get("file", "__init__.py")
    sound = file.read_text(encoding="utf-8")
    if "file" in fault:
        file.write_text(planted(fault, sound), encoding="utf-8")
    (copy / FAILED).write_text("", encoding="utf-8")
    process = FORK.Process(target=run, args=(fault["killed_by"], copy, options))
    process.start()
    process.join(SECONDS if "file" in fault else None)
    process.kill()
    file.write_text(sound, encoding="utf-8")
    state = STATES.get(process.exitcode, f"END WITH {process.exitcode}")
    failed = (copy / FAILED).read_text(encoding="utf-8").splitlines()
    return Tried(fault, state, failed, time.monotonic() - began)


def copy_code(folder: Path) -> None:
    """What git does not ignore, as it is on the disk."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def prepare() -> None:
    """Import once what is slow, for the processes that are forked from this one."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True  # a file that changes twice a second has one time
    import datasets  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401


class Failures:
    """A plugin: a line for each test that fails."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(f"{report.nodeid}\n")


def run(tests: Sequence[str], copy: Path, options: Sequence[str]) -> None:
    os.chdir(copy)
    with (copy / LOG).open("wb") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    arguments = ["-q", "-p", "no:cacheprovider", *options, *tests]
    sys.exit(int(pytest.main(arguments, plugins=[Failures(copy / FAILED)])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
