"""One writer a run folder: a lock of the system, or a file that beats where there is none.

A lock of the system dies with its process, however that ends. Some network file systems have none:
there the file alone is the lock, and its time is renewed while its process lives. One whose process
is gone from this machine is passed over at once, one of another machine when it is long silent.
"""

import contextlib
import hashlib
import json
import os
import socket
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import Any

from normprobe.errors import NormprobeError
from normprobe.runs.files import is_temporary, temporary_name, write_failures

if sys.platform != "win32":
    import fcntl

_FILE = ".lock"

#: Seconds between two beats, and those after which a silent process is taken for gone: it may
#: keep the interpreter busy for a while, or its network may.
BEAT, SILENT = 10.0, 120.0

#: The locks of the system that this process holds. A process forked from it closes its copies: it
#: may outlive this one for a while, and the lock must not.
_DESCRIPTORS: set[int] = set()


def _close_copies() -> None:
    while _DESCRIPTORS:
        os.close(_DESCRIPTORS.pop())


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_copies)


def holds_files(folder: Path) -> bool:
    """Whether a folder holds anything but a lock and files that were never finished."""
    return any(file.name != _FILE and not is_temporary(file) for file in folder.iterdir())


class FolderLock:
    """Held from ``acquire`` to ``release``, or until the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / _FILE
        self._text = ""  # of the file, as this process wrote it
        self._release: weakref.finalize[Any, FolderLock] | None = None  # while it is held

    def acquire(self) -> None:
        """Take the lock."""
        with write_failures(self._folder):
            while not self._held():
                with contextlib.suppress(FileNotFoundError):  # released in between
                    self._try()

    def check(self) -> None:
        """Find out whether the lock is still this one's, and the folder there."""
        if not self._held() or _read(self._file) == self._text:
            return
        if not self._file.exists():
            raise NormprobeError(
                f"{self._folder} or its lock was deleted while a run wrote into it",
                "measure again, and leave the folder alone meanwhile",
            )
        raise NormprobeError(
            f"{_who(_read(self._file))} took {self._folder} over: this process was silent for more "
            f"than {SILENT:.0f} s",
            "let that one end, or choose another --output",
        )

    def release(self) -> None:
        """Give the lock back, and leave no file of it; without effect where it is not held."""
        if self._release is not None:
            self._release()

    def _held(self) -> bool:
        return self._release is not None and self._release.alive

    def _try(self) -> None:
        """Take the lock, or the file of one that is gone out of the way."""
        made = True
        try:
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            made = False
            descriptor = os.open(self._file, os.O_RDWR)
        kept = False
        try:
            locked = self._locked(descriptor)
            before = _read(self._file)
            if locked and not os.path.samestat(os.fstat(descriptor), self._file.stat()):
                return  # it locks a file that is no longer there
            if not made and not (locked and _is_of_the_system(before)):
                if self._lives(before, os.fstat(descriptor).st_mtime):
                    raise self._refusal(before)
                if not locked:
                    self._take_away(before)
                    return
            self._text = _own_text(locked)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, self._text.encode())
            kept = locked
            ended = threading.Event()
            state = self._file, self._text, ended
            # A run that nobody holds any more lets its folder go.
            self._release = weakref.finalize(
                self, _give_back, *state, descriptor if locked else None, os.getpid()
            )
            if locked:
                _DESCRIPTORS.add(descriptor)
            else:
                threading.Thread(target=_beat, args=state, daemon=True).start()
        finally:
            if not kept:
                os.close(descriptor)

    def _locked(self, descriptor: int) -> bool:
        """Ask the system for a lock; False: it has none for this file."""
        if sys.platform == "win32":
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._refusal(_read(self._file)) from None
        except OSError:
            return False
        return True

    def _lives(self, text: str, beaten: float) -> bool:
        """Whether the process that wrote a lock file may be alive; ``beaten``: its last beat."""
        owner = _owner(text)
        if owner.get("machine") is not None and owner["machine"] == _machine():
            return bool(_started(owner.get("process")) == owner.get("started"))
        if owner.get("system"):
            return True  # of a machine where the system locks: it sends no beats
        return self._age(beaten) < SILENT

    def _take_away(self, text: str) -> None:
        """Delete the lock file of a process that is gone: that one, and no newer one.

        Of those that saw it gone only one may, lest a slow one deletes what a fast one has put in
        its place: who makes the file that is named after its text. Behind that it is read again.
        """
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        claim = temporary_name(self._file.with_name(f"{_FILE}-{name}"))
        try:
            claim.touch(exist_ok=False)
        except FileExistsError:
            if self._age(claim.stat().st_mtime) > SILENT:  # its maker died over it
                claim.unlink()
            return
        try:
            if _read(self._file) == text:
                self._file.unlink()
        finally:
            claim.unlink()

    def _age(self, moment: float) -> float:
        """Seconds since a moment, by the clock of the file system, which two machines share."""
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=_FILE, suffix=".tmp") as now:
            return os.fstat(now.fileno()).st_mtime - moment

    def _refusal(self, text: str) -> NormprobeError:
        """Why the lock is not given."""
        owner = _owner(text)
        remedy = (
            "wait for it to end, or choose another --output; under torchrun or `accelerate launch` "
            "several processes share a run"
        )
        if owner and owner.get("machine") != _machine():
            remedy = (
                f"wait for it to end (killed, it is passed over after {SILENT:.0f} s), or choose "
                f"another --output; if it is gone for good, delete {self._file}"
            )
        return NormprobeError(f"{_who(text)} is writing into {self._folder}", remedy)


def _give_back(
    file: Path, text: str, ended: threading.Event, descriptor: int | None, process: int
) -> None:
    """End a lock, in the process that took it: those forked from it know of it too."""
    if process != os.getpid():
        return
    ended.set()
    with contextlib.suppress(OSError):
        if _read(file) == text:
            file.unlink()
    if descriptor is not None:
        _DESCRIPTORS.discard(descriptor)
        os.close(descriptor)


def _beat(file: Path, text: str, ended: threading.Event) -> None:
    """Renew the time of a lock file until the lock ends."""
    while not ended.wait(BEAT):
        with contextlib.suppress(OSError):
            if _read(file) == text:
                os.utime(file)


def _own_text(system: bool) -> str:
    """What a lock file says of this process; no two are the same."""
    return json.dumps(
        {
            "process": os.getpid(),
            "host": socket.gethostname(),
            "machine": _machine(),
            "started": _started(os.getpid()),
            "system": system,
            "since": time.time_ns(),
        }
    )


def _owner(text: str) -> dict[str, Any]:
    """What a lock file says; nothing while it is being written."""
    try:
        owner = json.loads(text)
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _is_of_the_system(text: str) -> bool:
    """Whether the system lock that was just given says all: no other process lives off beats."""
    return bool(_owner(text).get("system", True))


def _who(text: str) -> str:
    owner = _owner(text)
    return f"process {owner.get('process')} on {owner.get('host')}" if owner else "another process"


def _machine() -> str | None:
    """Where the number of a process means that process; None where it cannot be told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _started(process: object) -> str | None:
    """When a process of this machine began, in ticks; None where there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _read(file: Path) -> str:
    """The text of a file; empty where there is none."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
