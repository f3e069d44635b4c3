"""Which runs a folder holds: itself, or all below it, such as the folder of a demo."""

import os
from pathlib import Path

from normprobe.errors import NormprobeError
from normprobe.runs.run_folder import RECORD, read_record

_DEEPEST = 4  # folders below the one that is named: runs/<model>/<demo>/<run>


def runs_below(folder: Path) -> list[Path]:
    """The run folders of a folder, in the order in which they were begun."""
    if os.path.lexists(folder / RECORD) or not folder.is_dir():
        return [folder]  # whatever is wrong with it is told where it is opened
    found = []
    for place, below, files in os.walk(folder):
        path = Path(place)
        if RECORD in files:
            found.append(path)
        if RECORD in files or len(path.relative_to(folder).parts) == _DEEPEST:
            below.clear()
    if not found:
        raise NormprobeError(
            f"{folder} holds no run folder", "give the folder that a normprobe command printed"
        )
    return sorted(found, key=lambda path: (_begun(path), path))


def _begun(path: Path) -> str:
    return str((read_record(path) or {}).get("created", ""))
