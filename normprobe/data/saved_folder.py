"""Folders that ``Dataset.save_to_disk`` wrote: their tables, read without leaving the folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from normprobe.data.formats import Rows
from normprobe.data.hub import rows_of
from normprobe.errors import NormprobeError, first_line


def is_saved_folder(folder: Path) -> bool:
    """Whether a folder holds a saved data set, of one split or of several."""
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))


def read_saved_folder(folder: Path) -> list[tuple[str, Rows]]:
    """The splits of a saved data set with their names; ``""`` where it is one split alone."""
    import datasets

    try:
        for path in _named_files(folder):
            if not path.resolve().is_relative_to(folder.resolve()):
                raise ValueError(f"it names {str(path)!a}, outside of it")
        loaded = datasets.load_from_disk(str(folder))
        splits = loaded if isinstance(loaded, dict) else {"": loaded}
        for split in splits.values():
            split.data.validate(full=True)  # Arrow maps the file and trusts its offsets
    except Exception as error:  # a damaged JSON or arrow file fails in many ways
        raise NormprobeError(
            f"{folder}: expected a saved data set ({first_line(error)})",
            "save it again with Dataset.save_to_disk",
        ) from error
    return [(name, rows_of(split, str(folder / name))) for name, split in splits.items()]


def _named_files(folder: Path) -> Iterator[Path]:
    """The files that the JSON of a saved data set names, each before it is opened."""
    index = folder / "dataset_dict.json"
    splits = json.loads(index.read_text())["splits"] if index.is_file() else ["."]
    for split in splits:
        state = folder / split / "state.json"
        yield state
        for file in json.loads(state.read_text())["_data_files"]:
            yield folder / split / file["filename"]
