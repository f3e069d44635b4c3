"""Tables of the page, as they are."""

from typing import Any

import numpy as np
import pandas as pd

from normprobe.report.page.markup import Markup, block
from normprobe.report.readable_token import readable_token
from normprobe.report.significant import MISSING, count, significant

_COUNTS = ("tokens", "samples", "count", "nonfinite", "hidden_size")  # may hold empty fields
_NAMES = ("stage", "group", "rows", "table")  # hold names of the schema
_LONGEST = 200  # rows
_LONG = 40  # characters that one line may have


def table(rows: pd.DataFrame) -> Markup:
    """Rows as they are, numbers short, tokens with every character visible."""
    columns = [(str(name).replace("_", " "), _kind(rows[name])) for name in rows]
    shown = [
        [_text(name, value) for name, value in row.items()]
        for row in rows.head(_LONGEST).to_dict("records")
    ]
    return block("table", columns, shown, len(rows) - len(shown))


def _kind(column: "pd.Series[Any]") -> str:
    """The classes of a column: numbers line up on the right, long texts are broken."""
    if pd.api.types.is_numeric_dtype(column):
        return ""
    return "words long" if column.astype(str).str.len().max() > _LONG else "words"


def _text(name: object, value: object) -> str:
    if isinstance(value, str):
        if name in _NAMES:
            return value.replace("_", " ")
        return readable_token(value) if name == "token" and value else value
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if not isinstance(value, int | float | np.integer | np.floating):
        return MISSING if value is None else str(value)
    if isinstance(value, int | np.integer) or name in _COUNTS:
        return count(float(value))
    return significant(float(value))
