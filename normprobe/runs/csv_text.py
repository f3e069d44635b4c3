"""Tables as CSV and back. A spreadsheet that opens one runs no cell of it."""

import csv
import io
import re
from typing import Literal

import pandas as pd

# What a spreadsheet takes for a formula, also in its full-width forms, behind any apostrophes.
_FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")

_MOST_COLUMNS = 1000

#: Columns of text that may read like numbers: the token "1", the word "nan", layer "1" of "1-3, 6".
_TEXTS = ["token", "query", "run", "sample"]
_TEXTS += ["layers", "holds_in", "fails_in", "open_in", "exempt_in"]


def csv_bytes(table: pd.DataFrame) -> bytes:
    """A table as CSV: floats in full precision, NaN as an empty field, no index.

    Text that a spreadsheet would run as a formula begins with an apostrophe; ``csv_table`` takes
    it away.
    """
    texts = table.select_dtypes(exclude=["number", "bool"])
    safe = table.assign(**{str(name): column.map(_quoted) for name, column in texts.items()})
    text = safe.rename(columns=_quoted).to_csv(
        index=False, lineterminator="\n", quoting=_quoting(texts)
    )
    return text.encode("utf-8", errors="backslashreplace")


def csv_table(data: bytes) -> pd.DataFrame:
    """The table of ``csv_bytes``."""
    for line in data.split(b"\n", 2)[:2]:  # the names, and a row, which may be longer
        if line.count(b",") >= _MOST_COLUMNS:
            raise ValueError(f"expected {_MOST_COLUMNS} columns at most")
    table = pd.read_csv(
        io.BytesIO(data), keep_default_na=False, na_values=[""], dtype=dict.fromkeys(_TEXTS, str)
    ).rename(columns=_unquoted)
    texts = table.select_dtypes(exclude=["number", "bool"])
    # A column without a text stays one of texts.
    unquoted = {
        str(name): column.map(_unquoted).astype(column.dtype) for name, column in texts.items()
    }
    table = table.assign(**unquoted)
    if "token" in table:
        table["token"] = table["token"].fillna("")
    return table


def _quoted(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def _unquoted(cell: object) -> object:
    quoted = isinstance(cell, str) and cell.startswith("'") and _FORMULA.match(cell)
    return str(cell)[1:] if quoted else cell


def _quoting(texts: pd.DataFrame) -> Literal[0, 2]:
    # The csv module leaves a carriage return bare, and readers take it for the end of a row.
    bare = any(texts[name].astype(str).str.contains("\r", regex=False).any() for name in texts)
    return csv.QUOTE_NONNUMERIC if bare else csv.QUOTE_MINIMAL
