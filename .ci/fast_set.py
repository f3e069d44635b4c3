"""Choose the fast tests: they kill every planted fault, and reach nearly all lines.

`make test` runs them and holds their budget. `make fast-set` chooses anew, in three steps whose
records lie in .fast_set, which git ignores:

1. `measure [TESTS]`: runs all tests, or some again, and records of each its CPU seconds, as they
   would be where `speed` is 1, and the lines of the package that it reaches, those of the processes
   that it starts too.
2. `faults [BEGINNINGS]`: plants the faults of tests/faults.toml, and records which of the tests
   that they name fail.
3. `choose`: a greedy cover, then a case of each function that is left, the cheapest first. Writes
   tests/slow_tests.txt, the tests that are left out, and tests/further_cases.txt: of which of these
   functions one machine that runs everything, `.ci/run`, takes a share of the cases.

A test with the marker `slow` is never chosen. One that is neither marked nor in the list is fast.
"""

import csv
import ctypes
import json
import math
import os
import resource
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from multiprocessing.forkserver import _forkserver  # type: ignore[attr-defined]
from pathlib import Path

import coverage
import faults
import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / ".fast_set"
SETTINGS = RECORDS / "settings.ini"
TIMES, LINES, KILLS = RECORDS / "times.csv", RECORDS / "lines.npz", RECORDS / "kills.json"
CHOICE = ROOT / "tests/slow_tests.txt"
SHARES = ROOT / "tests/further_cases.txt"
#: A process that a test starts knows its name from pytest.
RECORDED = """[run]
source_pkgs = normprobe
parallel = true
data_file = {file}
context = ${{PYTEST_CURRENT_TEST-}}
core = ctrace
concurrency = multiprocessing, thread
disable_warnings = no-data-collected, module-not-imported, module-not-measured
"""
#: CPU seconds that `make test` may take where ``speed`` is 1, all of it: beyond that it is red.
BUDGET = 600.0
#: Some work of the kinds that tests do: small objects, a loop, memory that is touched first. Of the
#: three a busy host may slow down any.
WORK = """
import json
for _ in range(20):
    json.loads(json.dumps([{str(number): number} for number in range(20_000)]))
for number in range(3_000_000):
    total = number + number
for _ in range(8):
    bytes(bytearray(2**25))
"""
#: About what ``speed`` takes in CPU seconds where ``BUDGET`` was set, on a quiet machine; and from
#: which multiple of it on CPU seconds say nothing of the tests.
QUIET, SLOW = 2.0, 1.15
#: What the chosen tests may take together, in CPU seconds as they are recorded: lines that are
#: recorded make a test a third slower.
SECONDS = 600.0
#: Functions whose cases take less, by their mean, are fast without being chosen.
QUICK = 0.1
#: The share of the lines which any test reaches that the chosen ones have to reach.
SHARE = 0.97
#: What the slow cases of one function may take in `.ci/run`, in CPU seconds; beyond that every
#: second, fourth, ... case runs there, and none where one alone takes ``ALONE``. Of what has no
#: other test, such as blocks of the documentation, all run.
CASES, ALONE = 3.0, 6.0
WHOLE = (
    "tests/docs/",
    "tests/test_faults.py",
    "tests/test_readme.py",
    "tests/cli/test_main_commands.py",
    "tests/extensions/families/test_inputs_draft.py",
    "tests/measurements/test_new_quantity.py",
)


class Recorder:
    """A plugin: the CPU seconds and the lines of each test that this process runs."""

    def __init__(self) -> None:
        self.lines = coverage.Coverage(config_file=str(SETTINGS))
        self.lines.set_option("run:context", None)
        self.lines.start()
        os.environ["COVERAGE_PROCESS_START"] = str(SETTINGS)  # for those that tests start
        self.times = RECORDS / f"times-{os.getpid()}.csv"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.lines.switch_context(item.nodeid)
        began = cpu_seconds()
        try:
            return (yield)
        finally:
            slow = item.get_closest_marker("slow") is not None
            with self.times.open("a", newline="", encoding="utf-8") as file:
                csv.writer(file).writerow([item.nodeid, f"{cpu_seconds() - began:.4f}", int(slow)])
            self.lines.switch_context("")

    def pytest_sessionfinish(self) -> None:
        self.lines.stop()
        self.lines.save()


def pytest_configure(config: pytest.Config) -> None:
    """What `-p fast_set` adds where tests run, and not where pytest-xdist hands them out."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())


def cpu_seconds() -> float:
    """Of this process, of those that it started and that have ended, and of all forked commands."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = time.process_time() + ended.ru_utime + ended.ru_stime
    if server := _forkserver._forkserver_pid:  # it waits for commands, and we do not for it
        seconds += sum(psutil.Process(server).cpu_times()[:4])
    return seconds


def test(_: Sequence[str]) -> None:
    """Run the fast tests, print the slowest and what all took; red where that is too much."""
    before = speed()
    began = cpu_seconds()
    command = [sys.executable, "-m", "pytest", "--numprocesses", "2", "--durations", "10"]
    adopt_orphans()
    tests, ended = subprocess.Popen(command, cwd=ROOT), 1
    with suppress(ChildProcessError):
        while True:
            process, status = os.wait()
            if process == tests.pid:
                ended = os.waitstatus_to_exitcode(status)
    taken = cpu_seconds() - began
    slowness = max(before, speed())  # others may have come meanwhile
    told = f"fast tests: {taken:.0f} CPU seconds of at most {BUDGET:.0f} on a quiet machine"
    if slowness >= SLOW:
        told += f"; this one is {slowness:.1f} times as slow, so that is not judged"
    Console().print(told)
    sys.exit(ended or int(taken > BUDGET and slowness < SLOW))


def adopt_orphans() -> None:
    """Processes that outlive who started them count, too: servers that fork commands (Linux)."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def speed() -> float:
    """How slow this machine is: CPU seconds of some work, twice at once, over ``QUIET``."""
    began = cpu_seconds()
    both = [subprocess.Popen([sys.executable, "-c", WORK]) for _ in range(2)]
    for process in both:
        process.wait()
    return (cpu_seconds() - began) / QUIET


def measure(tests: Sequence[str]) -> None:
    """Run tests, all but those of a GPU and of a hub, and add what they show to the records."""
    RECORDS.mkdir(exist_ok=True)
    SETTINGS.write_text(RECORDED.format(file=RECORDS / "part"), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT / ".ci")}
    command = [sys.executable, "-m", "pytest", "-p", "fast_set", "--numprocesses", "2", "-q"]
    command += ["-m", "not gpu and not network and not real", *tests]
    slowness = speed()
    subprocess.run(command, cwd=ROOT, env=environment, check=False)
    times = read_times() if tests and TIMES.exists() else {}
    lines = read_lines() if tests and LINES.exists() else {}
    with TIMES.open("w", newline="", encoding="utf-8") as file:
        write = csv.writer(file).writerow
        for part in sorted(RECORDS.glob("times-*.csv")):
            with part.open(newline="", encoding="utf-8") as rows:
                for test, seconds, slow in csv.reader(rows):
                    times[test] = (float(seconds) / slowness, slow == "1")
            part.unlink()
        for test, (seconds, slow) in times.items():
            write([test, f"{seconds:.4f}", int(slow)])
    parts = sorted(RECORDS.glob("part.*"))
    lines |= reached(parts)
    np.savez(LINES, tests=np.array(list(lines)), lines=np.array(list(lines.values())))
    for part in parts:
        part.unlink()


def places() -> tuple[dict[str, int], int]:
    """Where the lines of each file begin among those of all, in bytes of eight lines; their end."""
    begin, end = {}, 0
    for file in sorted((ROOT / "normprobe").rglob("*.py")):
        begin[str(file)] = end
        end += file.read_bytes().count(b"\n") // 8 + 1
    return begin, end


def reached(parts: Sequence[Path]) -> dict[str, NDArray[np.uint8]]:
    """Test -> a bit a line: those that it reached, without those of importing the package."""
    begin, end = places()
    found: dict[str, NDArray[np.uint8]] = defaultdict(lambda: np.zeros(end, np.uint8))
    for part in parts:
        with sqlite3.connect(part) as database:  # coverage's own reader takes a line at a time
            if not database.execute(
                "select 1 from sqlite_master where name = 'line_bits'"
            ).fetchone():
                continue  # of a process that a test killed before it wrote
            rows = database.execute(
                "select context, path, numbits from line_bits"
                " join context on context.id = context_id join file on file.id = file_id"
            )
            for context, path, bits in rows:
                if path not in begin:  # a package that a test makes
                    continue
                # pytest adds the step, "(call)"; a fork has the test of its server before its own.
                named = context.rpartition("(call)|")[2]
                test = found[named.removesuffix(" (call)").removesuffix(" (setup)")]
                test[begin[path] :][: len(bits)] |= np.frombuffer(bits, np.uint8)
    imported = found.pop("", np.zeros(end, np.uint8))
    return {test: lines & ~imported for test, lines in found.items()}


def read_lines() -> dict[str, NDArray[np.uint8]]:
    with np.load(LINES) as records:
        return dict(zip(records["tests"].tolist(), records["lines"], strict=True))


def read_times() -> dict[str, tuple[float, bool]]:
    """Test -> its CPU seconds, and whether it is marked as slow."""
    with TIMES.open(newline="", encoding="utf-8") as rows:
        return {test: (float(seconds), slow == "1") for test, seconds, slow in csv.reader(rows)}


def kill(beginnings: Sequence[str]) -> None:
    """Plant faults, all or those whose names begin so, and record which tests fail."""
    kills = json.loads(KILLS.read_text(encoding="utf-8")) if KILLS.exists() else {}
    faults.prepare()
    options = ["-p", "fast_set", "-m", "not slow and not gpu and not network and not real"]
    for fault, state, failed, _ in faults.all_tried(faults.chosen(beginnings), *options):
        kills[fault["name"]] = failed
        Console().print(f"{len(failed):5} tests  {state}  {fault['name']}", highlight=False)
    KILLS.write_text(json.dumps(kills, indent=1), encoding="utf-8")


def choose(_: Sequence[str]) -> None:
    """Choose the fast tests of what is recorded, and write the others down."""
    times, reached = read_times(), read_lines()
    tests = [test for test in times if not times[test][1]]
    seconds = np.array([max(times[test][0], 0.001) for test in tests])
    lines = np.array([reached.get(test, np.zeros(places()[1], np.uint8)) for test in tests])
    every = np.bitwise_or.reduce(list(reached.values()))
    wanted = np.bitwise_count(every).sum()
    functions = [function_of(test) for test in tests]
    mean = {name: np.mean(seconds[places]) for name, places in places_of(functions).items()}
    chosen = np.array([mean[name] <= QUICK for name in functions])
    for killers in killing(tests):
        if not chosen[killers].any():
            chosen[killers[seconds[killers].argmin()]] = True
    covered = np.bitwise_or.reduce(lines[chosen])
    while np.bitwise_count(covered).sum() < SHARE * wanted:
        worth = np.bitwise_count(lines & ~covered).sum(1) / seconds
        best = int(np.where(chosen, -1, worth).argmax())
        chosen[best] = True
        covered |= lines[best]
    # Two functions that reach the same lines ask different things of them.
    left = [places for places in places_of(functions).values() if not chosen[places].any()]
    for best in sorted((min(places, key=seconds.item) for places in left), key=seconds.item):
        if seconds[chosen].sum() + seconds[best] <= SECONDS:
            chosen[best] = True
    share = np.bitwise_count(np.bitwise_or.reduce(lines[chosen])).sum() / wanted
    Console().print(
        f"{chosen.sum():,} of {len(times):,} tests, {seconds[chosen].sum():.0f} CPU seconds, reach"
        f" {share:.1%} of {wanted:,} lines"
    )
    write_choice(tests, chosen)
    write_shares(times, {tests[place] for place in np.flatnonzero(chosen)})
    if seconds[chosen].sum() > SECONDS:
        sys.exit(f"more than {SECONDS:.0f} CPU seconds: make tests cheaper, or raise SECONDS")


def killing(tests: Sequence[str]) -> Iterator[NDArray[np.int64]]:
    """The places of the tests that kill each fault, the fault with the fewest first."""
    place = {test: number for number, test in enumerate(tests)}
    kills = json.loads(KILLS.read_text(encoding="utf-8"))
    for name, failed in sorted(kills.items(), key=lambda item: len(item[1])):
        if found := [place[test] for test in failed if test in place]:
            yield np.array(found)
        else:
            Console().print(f"lives: {name}", style="red")


def write_choice(tests: Sequence[str], chosen: NDArray[np.bool_]) -> None:
    """A line a function that is left out, behind it one a case of it that is fast all the same."""
    lines = []
    for name, places in sorted(places_of([function_of(test) for test in tests]).items()):
        if not chosen[places].all():
            lines.append(name)
            lines += sorted(f"+ {tests[place]}" for place in places if chosen[place])
    CHOICE.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_shares(times: dict[str, tuple[float, bool]], fast: Container[str]) -> None:
    """A line a function whose slow cases take long: one of how many runs on each change; 0: none.

    Powers of two, so that functions of the same cases, such as model types, run the same of them.
    """
    slow = [test for test in times if test not in fast]
    lines = []
    for name, places in sorted(places_of([function_of(test) for test in slow]).items()):
        seconds = [times[slow[place]][0] for place in places]
        if name.startswith(WHOLE):
            continue
        if np.mean(seconds) > ALONE:
            lines.append(f"0 {name}")
        elif len(seconds) > 1 and sum(seconds) > CASES:
            lines.append(f"{2 ** math.ceil(math.log2(sum(seconds) / CASES))} {name}")
    SHARES.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def function_of(test: str) -> str:
    """A test without its case."""
    return test.partition("[")[0]


def places_of(names: Sequence[str]) -> dict[str, list[int]]:
    """Where each name stands."""
    places = defaultdict(list)
    for place, name in enumerate(names):
        places[name].append(place)
    return dict(places)


if __name__ == "__main__":
    steps = {"test": test, "measure": measure, "faults": kill, "choose": choose}
    steps[sys.argv[1]](sys.argv[2:])
