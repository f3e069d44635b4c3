"""Two writers of one folder: one of them is refused, until the other ends."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import pandas as pd
import pytest

from normprobe import NormprobeError
from normprobe.runs import folder_lock
from normprobe.runs.begin import resumed
from normprobe.runs.folder_lock import SILENT, FolderLock, holds_files
from normprobe.runs.run_folder import RunFolder
from normprobe.schema import SCHEMA_VERSION

RECORD = {"command": "layers", "model": "a/b", "schema_version": SCHEMA_VERSION}

HOLD = """
import sys, time
from pathlib import Path
from normprobe.runs.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_the_second_of_two_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(NormprobeError) as refused:
            RunFolder.create(tmp_path, overwrite=True, record=RECORD)
        assert f"process {process.pid} on " in refused.value.problem
        assert str(tmp_path) in refused.value.problem
        process.send_signal(signal.SIGKILL)
        process.wait()
        RunFolder.create(tmp_path, overwrite=True, record=RECORD).finish()
    finally:
        process.kill()
        process.wait()


def test_a_lock_does_not_outlive_its_process_in_one_forked_from_it(tmp_path: Path) -> None:
    # In one write: what two processes print may mix.
    told = 'os.write(1, f"{os.fork() or os.getpid()}\\n".encode())'
    forks = f"import os\n{HOLD}".replace('print("held", flush=True)', told)
    process = subprocess.Popen(
        [sys.executable, "-c", forks, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    # Both say the number of the child: it has begun, and given back what it inherited.
    child, same = (int(process.stdout.readline()) for _ in range(2))
    assert child == same
    try:
        process.kill()
        process.wait()
        os.kill(child, 0)  # it lives, as a worker does for some seconds
        RunFolder.create(tmp_path, overwrite=True, record=RECORD).finish()
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


def test_one_process_is_two_writers_too(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path, overwrite=False, record=RECORD)
    with pytest.raises(NormprobeError, match="is writing into"):
        RunFolder.create(tmp_path, overwrite=True, record=RECORD)
    first.finish()
    RunFolder.create(tmp_path, overwrite=True, record=RECORD)


def test_a_run_that_ends_leaves_no_lock(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, overwrite=False, record=RECORD).finish()
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_a_forked_process_does_not_give_the_lock_back(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire()
    child = os.fork()
    if child == 0:
        lock.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / ".lock").exists()
    lock.check()
    lock.release()


def test_a_run_that_fails_leaves_no_lock(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", overwrite=False, record=RECORD)
    with pytest.raises(ZeroDivisionError), run.discarded_on_failure():
        raise ZeroDivisionError
    assert not (tmp_path / "run").exists()


def test_a_lock_alone_is_no_content(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire()
    assert not holds_files(tmp_path)
    lock.release()
    lock.release()
    assert not list(tmp_path.iterdir())


def just_before(monkeypatch: pytest.MonkeyPatch, name: str, happens: Callable[[], object]) -> None:
    """Let something happen once, just before a method of the lock is called."""
    real = getattr(FolderLock, name)

    def method(lock: FolderLock) -> None:
        monkeypatch.setattr(FolderLock, name, real)
        happens()
        real(lock)

    monkeypatch.setattr(FolderLock, name, method)


def test_a_run_that_ended_a_moment_ago_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another() -> None:
        RunFolder.create(tmp_path, overwrite=False, record={**RECORD, "model": "first"}).finish()

    just_before(monkeypatch, "acquire", another)
    with pytest.raises(NormprobeError, match="exists"):
        RunFolder.create(tmp_path, overwrite=False, record=RECORD)
    assert RunFolder.open(tmp_path).record["model"] == "first"


def test_a_run_is_resumed_as_another_process_left_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {**RECORD, "versions": {}, "options": {}}
    RunFolder.create(tmp_path, overwrite=False, record=record).unlock()

    def another() -> None:
        run = resumed(tmp_path, record)
        assert run is not None
        run.note(batch_size=7)
        run.finish()

    just_before(monkeypatch, "acquire", another)
    run = resumed(tmp_path, record)
    assert run is not None
    assert run.record["batch_size"] == 7
    assert run.record["status"] == "complete"


def test_a_run_that_fails_takes_no_other_run_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    first = RunFolder.create(path, overwrite=False, record=RECORD)
    release = FolderLock.release

    def another(lock: FolderLock) -> None:
        release(lock)
        monkeypatch.setattr(FolderLock, "release", release)
        RunFolder.create(path, overwrite=False, record=RECORD).finish()

    monkeypatch.setattr(FolderLock, "release", another)
    with pytest.raises(ZeroDivisionError), first.discarded_on_failure():
        raise ZeroDivisionError
    assert RunFolder.open(path).record["status"] == "complete"


# --- file systems without locks -----------------------------------------------------------------

#: Of another machine, as it would be read here.
ELSEWHERE = {
    "process": 7, "host": "node-2", "machine": "another", "started": "1", "system": False,
    "since": 1,
}  # fmt: skip


@pytest.fixture(params=[errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def no_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that has no locks."""

    def refused(*_: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", refused)
    monkeypatch.setattr(fcntl, "lockf", refused)


def written(folder: Path, silent: float = 0.0, **owner: object) -> Path:
    """A lock file that another process has left, silent for so many seconds."""
    file = folder / ".lock"
    file.write_text(json.dumps(ELSEWHERE | owner))
    os.utime(file, (time.time() - silent,) * 2)
    return file


def own(folder: Path) -> dict[str, object]:
    """What the lock file says while this process holds the lock."""
    lock = FolderLock(folder)
    lock.acquire()
    text = (folder / ".lock").read_text()
    lock.release()
    return dict(json.loads(text))


@pytest.mark.usefixtures("no_locks")
def test_without_locks_one_of_two_writes(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path, overwrite=False, record=RECORD)
    with pytest.raises(NormprobeError, match=f"process {os.getpid()} on .* is writing into"):
        RunFolder.create(tmp_path, overwrite=True, record=RECORD)
    first.finish()
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]
    RunFolder.create(tmp_path, overwrite=True, record=RECORD).finish()


@pytest.mark.usefixtures("no_locks")
@pytest.mark.parametrize("host", ["node-2", socket.gethostname()])  # containers may share a name
def test_without_locks_a_living_process_of_another_machine_keeps_its_lock(
    host: str, tmp_path: Path
) -> None:
    file = written(tmp_path, silent=SILENT - 20, host=host)
    with pytest.raises(NormprobeError, match=f"process 7 on {host}") as refused:
        FolderLock(tmp_path).acquire()
    assert f"delete {file}" in refused.value.remedy
    assert json.loads(file.read_text()) == ELSEWHERE | {"host": host}


@pytest.mark.usefixtures("no_locks")
def test_without_locks_one_that_is_silent_for_long_is_passed_over(tmp_path: Path) -> None:
    written(tmp_path, silent=SILENT + 20)
    assert own(tmp_path)["process"] == os.getpid()
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("no_locks")
def test_without_locks_the_clock_of_the_file_system_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    written(tmp_path)
    monkeypatch.setattr(time, "time", lambda: now + 10 * SILENT)
    with pytest.raises(NormprobeError, match="process 7 on node-2"):
        FolderLock(tmp_path).acquire()


@pytest.mark.usefixtures("no_locks")
@pytest.mark.parametrize("text", ["", "process 7 on node-2", "[1]"])
def test_without_locks_a_file_that_says_nothing_counts_by_its_time(
    text: str, tmp_path: Path
) -> None:
    file = written(tmp_path)
    file.write_text(text)
    with pytest.raises(NormprobeError, match="another process"):
        FolderLock(tmp_path).acquire()
    os.utime(file, (time.time() - SILENT - 20,) * 2)
    FolderLock(tmp_path).acquire()


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_dead_process_of_this_machine_is_passed_over_at_once(
    tmp_path: Path,
) -> None:
    here = own(tmp_path)
    living = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        # Its number went to another process since: that one did not write the file.
        written(tmp_path, **(here | {"process": living.pid, "started": "1"}))
        assert own(tmp_path)["process"] == os.getpid()
    finally:
        living.kill()
        living.communicate()
    written(tmp_path, **(here | {"process": living.pid}))
    assert own(tmp_path)["process"] == os.getpid()
    written(tmp_path, **here)  # this one lives
    with pytest.raises(NormprobeError, match=f"process {os.getpid()} on "):
        FolderLock(tmp_path).acquire()


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_file_that_changed_hands_is_not_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two found it silent: the slower one must not take the lock of the faster one."""
    written(tmp_path, silent=SILENT + 20)
    faster, slower = FolderLock(tmp_path), FolderLock(tmp_path)
    real = FolderLock._take_away

    def take_away(lock: FolderLock, text: str) -> None:
        monkeypatch.setattr(FolderLock, "_take_away", real)
        faster.acquire()
        real(lock, text)

    monkeypatch.setattr(FolderLock, "_take_away", take_away)
    with pytest.raises(NormprobeError, match=f"process {os.getpid()} on "):
        slower.acquire()
    faster.check()
    faster.release()
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("no_locks")
def test_without_locks_the_file_beats_and_a_loss_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_lock, "BEAT", 0.01)
    run = RunFolder.create(tmp_path, overwrite=False, record=RECORD)
    file = tmp_path / ".lock"
    os.utime(file, (0, 0))
    latest = time.monotonic() + 10
    while file.stat().st_mtime == 0 and time.monotonic() < latest:
        time.sleep(0.01)
    assert file.stat().st_mtime > 0
    written(tmp_path)
    with pytest.raises(NormprobeError, match=r"process 7 on node-2 took .* over"):
        run.note(model="c/d")
    os.utime(file, (0, 0))
    time.sleep(0.05)
    assert file.stat().st_mtime == 0  # a beat here would say that the other lives
    run.unlock()
    assert file.exists()  # it is the other's


def test_where_there_are_locks_a_process_that_has_none_is_left_alone(tmp_path: Path) -> None:
    """One file system, seen by a machine that can lock there and by one that cannot."""
    written(tmp_path)
    with pytest.raises(NormprobeError, match="process 7 on node-2"):
        FolderLock(tmp_path).acquire()
    written(tmp_path, silent=SILENT + 20)
    assert own(tmp_path)["system"] is True
    written(tmp_path, system=True)  # the system says that nobody holds it
    assert own(tmp_path)["process"] == os.getpid()


@pytest.mark.usefixtures("no_locks")
def test_without_locks_nothing_is_known_of_one_that_has_them(tmp_path: Path) -> None:
    written(tmp_path, silent=10 * SILENT, system=True)
    with pytest.raises(NormprobeError, match="process 7 on node-2"):
        FolderLock(tmp_path).acquire()


RACE = """
import errno, fcntl, os, sys, time
from pathlib import Path
def refused(*_): raise OSError(errno.ENOLCK, "no locks")
fcntl.flock = refused
from normprobe import NormprobeError
from normprobe.runs.folder_lock import FolderLock
folder, counter = Path(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
input()
taken, until = 0, time.monotonic() + 60
while int(counter.read_text() or 0) < 400 and time.monotonic() < until:
    lock = FolderLock(folder)
    try:
        lock.acquire()
    except NormprobeError:
        continue
    number = int(counter.read_text())
    time.sleep(0.001)
    counter.write_text(str(number + 1))
    taken += 1
    if taken % 5 == 0:  # die, as far as others can see
        text = (folder / ".lock").read_text().replace(f'"process": {os.getpid()}', '"process": 0')
        (folder / ".lock").write_text(text)
    lock.release()
print(taken)
"""


@pytest.mark.slow
def test_without_locks_processes_that_race_for_dead_ones_never_meet(tmp_path: Path) -> None:
    folder, counter = tmp_path / "run", tmp_path / "counter"
    folder.mkdir()
    counter.write_text("0")
    command = [sys.executable, "-c", RACE, str(folder), str(counter)]
    pipe = subprocess.PIPE
    racers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(4)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    taken = [int(racer.communicate(timeout=120)[0]) for racer in racers]
    assert int(counter.read_text()) == sum(taken) > 100


# --- folders that go away -----------------------------------------------------------------------


def test_a_folder_that_is_deleted_while_a_run_writes_is_said_to_be(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", overwrite=False, record=RECORD)
    rmtree(run.path)
    with (
        pytest.raises(NormprobeError, match="run or its lock was deleted while a run wrote into"),
        run.discarded_on_failure(),
    ):
        run.append(pd.DataFrame({"sample_id": ["a"]}))
    assert not run.path.exists()
