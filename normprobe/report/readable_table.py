"""A table as it is to be read, before Markdown or LaTeX spells it: text, alignment, rounding."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from normprobe.errors import visible
from normprobe.report.readable_token import readable_token
from normprobe.report.significant import MISSING, significant

ROUNDED = "Numbers have 4 significant digits; counts are exact."


@dataclass(frozen=True)
class ReadableTable:
    """Cells of text.

    Attributes:
        headers: of each column; a header of two parts stands below its first part, which it shares
            with its neighbours.
        rows: a cell a column.
        numeric: of each column, whether it holds numbers.
        notes: what stands below.
        title: what stands above; empty: nothing.
    """

    headers: Sequence[tuple[str, ...]]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[bool]
    notes: Sequence[str] = ()
    title: str = ""


def readable_table(table: pd.DataFrame) -> ReadableTable:
    """A table of a run with its numbers rounded.

    Columns of whole numbers stay exact. Tokens are quoted, and every character of them is visible.
    """
    columns = [table.iloc[:, place] for place in range(table.shape[1])]
    cells = [_cells(str(name), column) for name, column in zip(table, columns, strict=True)]
    return ReadableTable(
        [(visible(str(name)),) for name in table],
        list(zip(*cells, strict=True)),
        [_is_numeric(column) for column in columns],
        [ROUNDED],
    )


def _is_numeric(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _cells(name: str, column: pd.Series) -> list[str]:
    values = column.tolist()
    known = [float(value) for value in values if isinstance(value, int | float)]
    whole = all(value.is_integer() for value in known if not math.isnan(value))
    return [_cell(name, value, whole=whole) for value in values]


def _cell(name: str, value: object, *, whole: bool) -> str:
    if isinstance(value, str):
        return readable_token(value) if name == "token" and value else visible(value)
    if value is None or value is pd.NA or value != value:
        return MISSING
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(int(value)) if whole else significant(value)
    return visible(str(value))
