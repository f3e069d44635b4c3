"""The models of a survey: which they are, and what it fetches of each and keeps.

With ``--keep all`` models are fetched into the hub cache, as by any other command. Otherwise the
survey has a cache of its own in its folder. It begins as links to the files of the hub cache, so
that nothing is fetched that is here already; what is fetched is a file of its own, and goes when
its model is done. So the hub cache is read and never written, whatever ends the survey.
"""

import csv
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Literal, NamedTuple

from normprobe.errors import NormprobeError, first_line

_FORMAT = "give a model a line, # for comments, or a CSV file with a column model (and revision)"


class ListedModel(NamedTuple):
    """A model as it was listed."""

    model: str  # ``specimen``, a local folder or a hub id
    revision: str = ""  # branch, tag or commit of a hub id; empty: its default

    def __str__(self) -> str:
        return f"{self.model}@{self.revision}" if self.revision else self.model


def listed_models(arguments: Sequence[str]) -> list[ListedModel]:
    """The models of a survey, in order."""
    models: list[ListedModel] = []
    for argument in arguments:
        models += _read(Path(argument)) if _is_list(Path(argument)) else [ListedModel(argument)]
    for place, model in enumerate(models):
        if model in models[:place]:
            raise NormprobeError(f"{model} is listed twice", "list each model once")
    return models


def shipped_list() -> str:
    """Hub ids by family as a CSV file, to be cut down and given to ``listed_models``."""
    return (files(__package__) / "hub_models.csv").read_text(encoding="utf-8")


def _is_list(path: Path) -> bool:
    """No hub id ends as a list does: one that is not there is a mistake, not a model."""
    return path.is_file() or (path.suffix in (".csv", ".txt") and not path.is_dir())


def _read(file: Path) -> list[ListedModel]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise NormprobeError(f"cannot read {file}: {first_line(error)}", _FORMAT) from error
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    models = list(_rows(file, lines)) if file.suffix == ".csv" else [*map(ListedModel, lines)]
    if not models:
        raise NormprobeError(f"{file} lists no model", _FORMAT)
    return models


def _rows(file: Path, lines: Sequence[str]) -> Iterator[ListedModel]:
    """The rows of a CSV file."""
    for number, row in enumerate(csv.DictReader(lines), start=1):
        model = (row.get("model") or "").strip()
        if not model:
            raise NormprobeError(f"row {number} of {file} has no column model", _FORMAT)
        yield ListedModel(model, (row.get("revision") or "").strip())


Keep = Literal["none", "config", "all"]

#: Where a survey keeps what it fetches.
FOLDER = "cache"

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx")
_UNFINISHED = ".incomplete"
#: Folders of a repository in the cache whose files are never written again.
_NEVER_WRITTEN = ("blobs", "snapshots")


class HubCache:
    """The cache of a survey."""

    def __init__(self, folder: Path, shared: Path, keep: Keep) -> None:
        self._folder, self._shared, self._keep = folder.resolve() / FOLDER, shared, keep

    @contextmanager
    def used(self) -> Iterator[None]:
        """Meanwhile processes that start read this cache: libraries look it up when imported."""
        places = {"HF_HUB_CACHE": "hub", "HF_XET_CACHE": "xet", "HF_MODULES_CACHE": "modules"}
        before = {name: os.environ.get(name) for name in places}
        if self._keep != "all":
            os.environ |= {name: str(self._folder / place) for name, place in places.items()}
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ |= {} if value is None else {name: value}

    def open(self) -> None:
        """Link what the hub cache holds."""
        if self._keep == "all" or not self._shared.is_dir():
            return
        for repository in self._shared.iterdir():
            own = self._folder / "hub" / repository.name
            if not repository.name.startswith("models--"):
                if repository.name.startswith("datasets--") and not own.exists():
                    own.parent.mkdir(parents=True, exist_ok=True)
                    own.symlink_to(repository.resolve())
                continue
            for file in _files(repository):
                _take_over(file, own / file.relative_to(repository))

    def close(self) -> None:
        """Delete what is not kept of what a model fetched."""
        if self._keep == "none":
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._keep == "config":
            shutil.rmtree(self._folder / "xet", ignore_errors=True)
            for file in [*_files(self._folder / "hub")]:
                if file.name.endswith(_WEIGHTS):
                    _delete_with_content(file)
                elif file.name.endswith(_UNFINISHED):
                    file.unlink()


def _files(folder: Path) -> Iterator[Path]:
    """All files below a folder, links to files among them; links to folders are not followed."""
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)


def _take_over(file: Path, own: Path) -> None:
    """Link a file that is never written again, copy a small one that may be."""
    if own.exists() or own.is_symlink() or file.name.endswith(_UNFINISHED) or not file.exists():
        return
    own.parent.mkdir(parents=True, exist_ok=True)
    if set(_NEVER_WRITTEN) & set(file.parts):
        own.symlink_to(file.absolute())
    else:
        shutil.copyfile(file, own)


def _delete_with_content(file: Path) -> None:
    """Delete a file of a snapshot that was fetched here, and the blob that it is a link to."""
    blob = file.readlink() if file.is_symlink() else None
    if blob is not None and blob.is_absolute():  # a link to the hub cache: it was there before
        return
    if blob is not None:
        (file.parent / blob).unlink(missing_ok=True)
    file.unlink()
