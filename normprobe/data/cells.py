"""Columns and cells of a table: what has to be there, and what a cell may hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normprobe.data.bad_rows import BadRow, Place
from normprobe.errors import NormprobeError

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
            f"expected text, received {quoted(value)}",
            "fill the cell or remove its row",
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can spell half a character: "\\ud800"
        raise BadRow(
            where, f"{quoted(value)} is no valid Unicode", "correct the cell or remove its row"
        ) from error
    return value


def quoted(value: Any) -> str:
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
