"""Rows that cannot be used: where they stand, and whether they end the run or are skipped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from normprobe.errors import NormprobeError


@dataclass(frozen=True)
class Place:
    """Where something stands in a data set.

    Attributes:
        file: path of a file, or id of a data set on the hub.
        row: counted from 1 without the header; ``None``: the whole file.
        column: name of the column; ``None``: the whole row.
        unit: what ``row`` counts: rows, or lines of a text file.
        note: more about the cell, such as the file that it names.
    """

    file: str
    row: int | None = None
    column: str | None = None
    unit: str = "row"
    note: str = ""

    def at(self, column: str) -> Place:
        """The cell of this row in a column."""
        return replace(self, column=column)

    def __str__(self) -> str:
        row = "" if self.row is None else f", {self.unit} {self.row}"
        column = "" if self.column is None else f", column {self.column}"
        return f"{self.file}{row}{column}" + (f" ({self.note})" if self.note else "")


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
