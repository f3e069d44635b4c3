"""Files that appear whole or not at all, and plain words when the disk refuses."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from normprobe.errors import NormprobeError

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}
_KEPT = "the complete parts are kept, and --resume goes on from them"


def temporary_name(path: Path) -> Path:
    """The name that ``path`` has while it is written: hidden, and the same at every attempt.

    A killed process cannot clean up. With one fixed name its leftover is overwritten by the next
    attempt instead of piling up.
    """
    return path.with_name(f".{path.name}.tmp")


def is_temporary(path: Path) -> bool:
    """Whether a file is what a killed process has left of one that it was writing."""
    return path.name.startswith(".") and path.name.endswith(".tmp")


def write_by_rename(path: Path, data: bytes) -> None:
    """Write a file so that no reader ever sees half of it."""
    temporary = temporary_name(path)
    with write_failures(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # or a power cut may leave an empty file of that name
            temporary.replace(path)
        except BaseException:  # Ctrl-C too must leave no temporary file
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


@contextlib.contextmanager
def write_failures(folder: Path) -> Iterator[None]:
    """Turn the OSError of a write into a NormprobeError that names ``folder``."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise NormprobeError(
                f"no space left in {folder}", f"free some space there; {_KEPT}"
            ) from error
        if error.errno in _NOT_WRITABLE:
            raise NormprobeError(
                f"{folder} is not writable", f"choose another --output or allow writing; {_KEPT}"
            ) from error
        raise NormprobeError(
            f"cannot write in {folder}: {error.strerror or error}",
            f"check --output; {_KEPT}",
        ) from error
