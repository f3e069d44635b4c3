"""Rows with their places: what their cells may hold, and rows that cannot be used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from normprobe.errors import NormprobeError


@dataclass(frozen=True)
class Place:
    """Where something stands in a data set."""

    file: str  # path of a file, or id of a data set on the hub
    row: int | None = None  # counted from 1 without the header; ``None``: the whole file
    column: str | None = None  # name of the column; ``None``: the whole row
    unit: str = "row"  # what ``row`` counts: rows, or lines of a text file
    note: str = ""  # more about the cell, such as the file that it names

    def at(self, column: str) -> Place:
        """The cell of this row in a column."""
        return replace(self, column=column)

    def __str__(self) -> str:
        row = "" if self.row is None else f", {self.unit} {self.row}"
        column = "" if self.column is None else f", column {self.column}"
        return f"{self.file}{row}{column}" + (f" ({self.note})" if self.note else "")


class Row(NamedTuple):
    """Named cells, and where they stand."""

    place: Place
    cells: Mapping[str, Any]

    def text(self, column: str) -> str:
        """A cell that must hold text."""
        return text_cell(self.cells.get(column), self.place.at(column))

    def key(self, column: str) -> str:
        """A cell that identifies this row."""
        return key_cell(self.cells.get(column), self.place.at(column))


class BadRow(NormprobeError):
    """A row that cannot be used; other rows of the file can."""

    def __init__(self, where: Place | str, fault: str, remedy: str) -> None:
        # Libraries put line breaks into their messages; a problem is one line.
        self.fault = " ".join(fault.split())
        super().__init__(f"{where}: {self.fault}", remedy)
        self.place = where if isinstance(where, Place) else Place(where)

    def __reduce__(self) -> tuple[type[BadRow], tuple[Place, str, str]]:
        """Pickle by these arguments: worker processes send the error to the main process."""
        return BadRow, (self.place, self.fault, self.remedy)


class RefusedSample(NormprobeError):
    """A sample that the model's processor refuses; it may accept the others."""


@dataclass(frozen=True)
class SkippedRow:
    """One line of ``skipped.csv``; a field that does not apply is None."""

    file: str | None
    row: int | None
    column: str | None
    sample: str | None
    reason: str


class BadRows:
    """Takes bad rows: the first one ends the run, or all are skipped and listed.

    Attributes:
        skip: skip bad rows instead of raising on the first.
    """

    def __init__(self, *, skip: bool = False) -> None:
        self.skip = skip
        self._skipped: dict[SkippedRow, None] = {}  # in the order of finding

    @property
    def skipped(self) -> list[SkippedRow]:
        """The rows skipped so far, each listed once however often the data were read."""
        return list(self._skipped)

    def refuse(self, error: BadRow | RefusedSample, sample: str | None = None) -> None:
        """Raise the error, or note it and return so that the caller goes on with the next row."""
        if not self.skip:
            raise error
        if isinstance(error, BadRow):
            place, reason = error.place, error.fault
            row = SkippedRow(place.file, place.row, place.column, sample, reason)
        else:
            row = SkippedRow(None, None, None, sample, error.problem)
        self.add([row])

    def add(self, rows: Iterable[SkippedRow]) -> None:
        """Add the rows that another process skipped."""
        for row in rows:
            self._skipped.setdefault(row)


_NAMES_SHOWN = 20


def require_columns(received: Sequence[str], expected: Sequence[str], where: object) -> None:
    """Check that each expected column is there once."""
    missing = [name for name in expected if name not in received]
    if missing:
        raise NormprobeError(
            f"{where}: missing columns {', '.join(missing)}; received {_names(received)}",
            f"use the published format, with the columns {', '.join(expected)}",
        )
    twice = [name for name in expected if list(received).count(name) > 1]
    if twice:
        raise NormprobeError(
            f"{where}: columns {', '.join(twice)} are there twice", "keep one of each"
        )


def text_cell(value: Any, where: Place | str) -> str:
    """Return a cell that must hold text."""
    if not isinstance(value, str) or not value.strip():
        raise BadRow(
            where,
            f"expected text, received {printable(value)}",
            "fill the cell or remove its row",
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can spell half a character: "\\ud800"
        raise BadRow(
            where, f"{printable(value)} is no valid Unicode", "correct the cell or remove its row"
        ) from error
    return value


def printable(value: Any) -> str:
    """A value from a file as one short printable line."""
    return (
        f"{value!a}"[:60]
        if isinstance(value, str) and not value.isprintable()
        else repr(value)[:60]
    )


def is_present(value: Any) -> bool:
    """False for an empty cell.

    Published files write an empty cell as nothing, null, NaN or "nan". The strings None, NA and
    null are values: some questions offer them as answers.
    """
    return value is not None and str(value) not in ("", "nan")


def _names(names: Sequence[str]) -> str:
    shown = [name if name.isprintable() else repr(name) for name in names[:_NAMES_SHOWN]]
    more = len(names) - len(shown)
    return ", ".join(name[:60] for name in shown) + (f" and {more} more" if more else "")


def key_cell(value: Any, place: Place) -> str:
    """Return a cell that identifies its row: a whole number or text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and value.is_integer():  # a column of numbers with a gap
        return str(int(value))
    return text_cell(value, place).strip()


def whole_number_cell(value: Any, place: Place) -> str:
    """Return a cell that identifies its row by a whole number, without leading zeros."""
    try:
        return str(int(key_cell(value, place)))
    except (BadRow, ValueError) as error:
        raise BadRow(
            place,
            f"expected a whole number, received {str(value)[:40]!a}",
            "give every row its number; shifted columns show here first",
        ) from error
