"""One writer a run folder: a lock that dies with its process, on network file systems too."""

import contextlib
import os
import socket
from pathlib import Path

from filelock import FileLock, Timeout

from normprobe.errors import NormprobeError
from normprobe.runs.atomic import is_temporary, write_failures

_FILE = ".lock"


def holds_files(folder: Path) -> bool:
    """Whether a folder holds anything but a lock and files that were never finished."""
    return any(file.name != _FILE and not is_temporary(file) for file in folder.iterdir())


class FolderLock:
    """Held from ``acquire`` to ``release``, or until the process ends, however it ends.

    The system holds it, so a killed process leaves none behind. The file gives it a place, and says
    whose it is.

    Args:
        folder: to lock; it exists.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / _FILE
        self._lock = FileLock(self._file, timeout=0)

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            NormprobeError: another process, or another run of this one, holds it.
        """
        with write_failures(self._folder):
            try:
                self._lock.acquire()
            except Timeout:
                raise NormprobeError(
                    f"{self._holder()} is writing into {self._folder}",
                    "wait for it to end, or choose another --output; under torchrun or `accelerate "
                    "launch` several processes share a run",
                ) from None
            self._file.write_text(f"process {os.getpid()} on {socket.gethostname()}")

    def release(self) -> None:
        """Give the lock back, and leave no file of it; without effect where it is not held."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):
                self._file.unlink()
            self._lock.release()

    def _holder(self) -> str:
        try:
            return self._file.read_text() or "another process"
        except (OSError, ValueError):
            return "another process"
