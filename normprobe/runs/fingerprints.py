"""Whether local files are still what they were, told from their content."""

from hashlib import sha256
from pathlib import Path

from normprobe.runs.run_folder import RECORD

#: Bytes that are read of a file at most: in blocks, evenly over its length, both ends included.
_BLOCK, _BLOCKS = 1 << 16, 64


def fingerprints(*sources: str) -> dict[str, str]:
    """A fingerprint of each file, and of each file in or below a folder; nothing of a hub id.

    Of a large file a few megabytes are read, evenly over its length: training changes nearly all
    numbers of a weight file, also where size and time stay.

    Args:
        sources: files, folders or hub ids.

    Returns:
        By the number of the source and the path in it. Hidden files are left out, and run folders
        below it: a run may be kept below the model that it measures.
    """
    return {
        f"{number}:{file.relative_to(source) if Path(source).is_dir() else file.name}": _of(file)
        for number, source in enumerate(sources)
        for file in _files(Path(source))
    }


def _files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source] if source.is_file() else []
    below = [file for file in sorted(source.rglob("*")) if file.is_file()]
    runs = {file.parent for file in below if file.name == RECORD} - {source}
    return [
        file
        for file in below
        if not any(part.startswith((".", "__pycache__")) for part in file.relative_to(source).parts)
        and runs.isdisjoint(file.parents)
    ]


def _of(file: Path) -> str:
    length = file.stat().st_size
    digest = sha256(str(length).encode())
    with file.open("rb") as content:
        if length <= _BLOCK * _BLOCKS:
            digest.update(content.read())
        else:
            for number in range(_BLOCKS):
                content.seek((length - _BLOCK) * number // (_BLOCKS - 1))
                digest.update(content.read(_BLOCK))
    return digest.hexdigest()
