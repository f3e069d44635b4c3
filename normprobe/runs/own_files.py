"""Which files of a run folder are read: a folder may come from a stranger."""

from pathlib import Path


def is_own(file: Path, folder: Path) -> bool:
    """Whether it is a regular file that lies in the folder: no link out of it, no pipe."""
    return file.is_file() and file.resolve().is_relative_to(folder.resolve())


def own_files(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder that match a pattern and are its own, in alphabetical order."""
    return sorted(file for file in folder.glob(pattern) if is_own(file, folder))
