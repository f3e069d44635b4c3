"""Which models a survey is of: named one by one, or listed in files."""

import csv
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

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
    return (files("normprobe.survey") / "hub_models.csv").read_text(encoding="utf-8")


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
