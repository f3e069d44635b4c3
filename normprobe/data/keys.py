"""What identifies a row: a published id or, where there is none, a hash of its content."""

import hashlib
from collections.abc import Iterable
from typing import Any

from normprobe.data.bad_rows import BadRow, BadRows, Place
from normprobe.data.cells import quoted, text_cell

_HASH_LENGTH = 16  # hexadecimal digits


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


def content_keys(contents: Iterable[bytes]) -> list[str]:
    """A hash of each row's content as its key; repeats of a row get ``-2``, ``-3``, ..."""
    keys, seen = [], dict[str, int]()
    for content in contents:
        key = hashlib.sha256(content).hexdigest()[:_HASH_LENGTH]
        seen[key] = seen.get(key, 0) + 1
        keys.append(key if seen[key] == 1 else f"{key}-{seen[key]}")
    return keys


def unique(
    rows: Iterable[tuple[int, Place, str]], column: str, bad: BadRows
) -> dict[str, tuple[int, Place]]:
    """Rows by key; a row that repeats the key of another is bad."""
    first: dict[str, tuple[int, Place]] = {}
    for row, place, key in rows:
        if key in first:
            bad.refuse(
                BadRow(
                    place.at(column),
                    f"{quoted(key)} stands already in {first[key][1]}",
                    "give every row its own key; remove rows that were pasted twice",
                )
            )
            continue
        first[key] = row, place
    return first
