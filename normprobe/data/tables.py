"""The file formats of the benchmarks to rows: TSV, JSON lines, parquet.

Rows count from 1, and a header is not counted. Whatever makes rows unreliable (another encoding,
merged lines, repeated keys) is refused when the file is opened; one bad cell is refused when its
row is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    import pyarrow as pa

# The reader's block has to hold the longest row, here the whole file; Arrow counts it in 32 bits.
_MAX_BLOCK = 2**31 - 1


def read_tsv(path: Path, columns: Sequence[str]) -> pa.Table:
    """Read a tab-separated file with a header; ``columns`` are read as text, digits included.

    Arrow's reader rather than that of pandas or the standard library: it neither turns the text
    "None" or "NA" into a missing value nor limits the size of a cell, and it counts the cells of
    every row.

    Raises:
        NormprobeError: unreadable, not UTF-8, no rows, a column is missing, a row of another width,
            or lines merged by a stray double quote.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    if not _read_text(path).strip():
        raise _no_rows(path)

    odd_rows = []

    def note_odd_row(row: Any) -> str:
        odd_rows.append(row)
        return "skip"  # raising here would hide the row number behind Arrow's own error

    try:
        table = csv.read_csv(
            path,
            read_options=csv.ReadOptions(
                use_threads=False,  # with threads the odd rows have no number
                block_size=min(path.stat().st_size + 1, _MAX_BLOCK),
            ),
            parse_options=csv.ParseOptions(
                delimiter="\t", newlines_in_values=True, invalid_row_handler=note_odd_row
            ),
            convert_options=csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string())),
        )
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            raise _no_rows(path) from error
        raise NormprobeError(
            f"{path}: not a tab-separated table ({str(error)[:200]}).",
            "Save it as tab-separated UTF-8 text with a header line.",
        ) from error
    if odd_rows:
        row = odd_rows[0]
        raise NormprobeError(
            f"{path}, row {row.number - 1}: expected {row.expected_columns} columns, "
            f"received {row.actual_columns}.",
            "Look for a stray tab or double quote in that row.",
        )
    require_columns(table.column_names, columns, str(path))
    if not table.num_rows:
        raise _no_rows(path)

    # A stray pair of double quotes merges the lines between without changing the width. Then the
    # start of a row (a number and a tab) stands inside a cell.
    for name in columns:
        merged = pc.index(pc.match_substring_regex(table[name], r"\n\d+\t"), True).as_py()
        if merged >= 0:
            raise NormprobeError(
                f"{path}, row {merged + 1}, column {name}: the cell swallows the next line.",
                "Look for a stray double quote in that row.",
            )
    return table


def read_parquet(path: Path, columns: Sequence[str]) -> pa.Table:
    """Read a parquet file.

    Raises:
        NormprobeError: unreadable, not parquet, no rows, or a column is missing.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(path, memory_map=True)
    except (OSError, pa.ArrowException) as error:
        raise NormprobeError(
            f"{path}: expected a parquet file ({str(error)[:200]}).",
            "Download the file again, and check that it is complete.",
        ) from error
    require_columns(table.column_names, columns, str(path))
    if not table.num_rows:
        raise _no_rows(path)
    return table


def read_json_lines(path: Path, columns: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Read one JSON object a line; blank lines are skipped.

    Returns:
        For each object, the place for errors ("FILE, line 3") and the object.

    Raises:
        NormprobeError: unreadable, not UTF-8, no lines, a line that is no JSON object, or a column
            is missing in one.
    """
    rows = []
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise NormprobeError(
                f"{where}: not JSON ({error}).", "Write one JSON object on each line."
            ) from error
        if not isinstance(row, dict):
            raise NormprobeError(
                f"{where}: expected a JSON object, received {type(row).__name__}.",
                "Write one JSON object on each line.",
            )
        require_columns(list(row), columns, where)
        rows.append((where, row))
    if not rows:
        raise _no_rows(path)
    return rows


def require_columns(received: Sequence[str], expected: Sequence[str], where: str) -> None:
    """Check that each expected column is there once.

    Raises:
        NormprobeError: a column is missing or there twice.
    """
    missing = [name for name in expected if name not in received]
    if missing:
        raise NormprobeError(
            f"{where}: missing columns {', '.join(missing)}; received {', '.join(received)}.",
            f"Use the published format, with the columns {', '.join(expected)}.",
        )
    twice = [name for name in expected if received.count(name) > 1]
    if twice:
        raise NormprobeError(
            f"{where}: columns {', '.join(twice)} are there twice.", "Keep one of each."
        )


def require_unique(keys: Iterable[tuple[str, str]], column: str) -> None:
    """Check that no key repeats.

    Args:
        keys: for each row, its place for errors and its key.
        column: the column of the keys, for errors.

    Raises:
        NormprobeError: names the first row that repeats a key, and the row before it.
    """
    first: dict[str, str] = {}
    for where, key in keys:
        if key in first:
            raise NormprobeError(
                f"{where}, column {column}: {key!r} stands already in {first[key]}.",
                "Give every row its own key; remove rows that were pasted twice.",
            )
        first[key] = where


def row_place(source: str, row: int) -> str:
    """Name a row of a table for errors; ``row`` counts from 0, people count from 1."""
    return f"{source}, row {row + 1}"


def text_cell(value: Any, where: str) -> str:
    """Return a cell that must hold text.

    Raises:
        NormprobeError: empty, or no text.
    """
    if not isinstance(value, str) or not value.strip():
        raise NormprobeError(
            f"{where}: expected text, received {value!r}.", "Fill the cell or remove its row."
        )
    return value


def _read_text(path: Path) -> str:
    try:
        # utf-8-sig: spreadsheet programs begin a UTF-8 file with a byte order mark.
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise NormprobeError(
            f"{path}: expected UTF-8 text, received another encoding (byte {error.start}).",
            f"Convert it: iconv -f ENCODING -t UTF-8 {path} > NEW_FILE",
        ) from error
    except OSError as error:
        raise NormprobeError(
            f"{path}: the file cannot be read ({error.strerror}).", "Check the path and its rights."
        ) from error


def _no_rows(path: Path) -> NormprobeError:
    return NormprobeError(f"{path}: the file holds no rows.", "Check that the file is complete.")
