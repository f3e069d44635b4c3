"""Two writers of one folder: one of them is refused, until the other ends."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from normprobe import NormprobeError
from normprobe.runs.folder_lock import FolderLock, holds_files
from normprobe.runs.resuming import resumed
from normprobe.runs.run_folder import RunFolder

RECORD = {"command": "layers", "model": "a/b"}

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


def test_one_process_is_two_writers_too(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path, overwrite=False, record=RECORD)
    with pytest.raises(NormprobeError, match="is writing into"):
        RunFolder.create(tmp_path, overwrite=True, record=RECORD)
    first.finish()
    RunFolder.create(tmp_path, overwrite=True, record=RECORD)


def test_a_run_that_ends_leaves_no_lock(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, overwrite=False, record=RECORD).finish()
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


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
    assert run.record["status"] == "partial"


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
