"""Numbers, tokens and tables as people read them, however they are spelled in the end."""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from rich.cells import cell_len

from normprobe.errors import escape, visible

MISSING = "-"

#: Digits of a mark that says which note a text has.
SUPERSCRIPTS = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"


def significant(value: float, digits: int = 4) -> str:
    """A number with ``digits`` significant digits, e.g. ``16.53``, ``0.0123``, ``1.23e-5``."""
    if math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    mantissa, exponent_text = f"{value:.{digits - 1}e}".split("e")
    exponent = int(exponent_text)  # after rounding: 9.9999 counts as 10.00
    if -3 <= exponent < 5:
        rounded = float(f"{mantissa}e{exponent}")
        return f"{rounded:.{max(0, digits - 1 - exponent)}f}"
    return f"{mantissa}e{exponent}"


def of_one_size(numbers: Sequence[float]) -> list[str]:
    """Numbers of either sign to two digits, with as many decimals each where they are of one size.

    What is at most ten times as large as the smallest gets the decimals that the smallest asks for.
    0 has no size.
    """
    texts = [significant(number, 2) for number in numbers]
    sizes = [abs(number) for number in numbers if number and math.isfinite(number)]
    if not sizes or max(sizes) > 10 * min(sizes) or "e" in "".join(texts):
        return texts
    decimals = max(len(text.partition(".")[2]) for text in texts)
    return [
        f"{number:.{decimals}f}" if number and math.isfinite(number) else text
        for number, text in zip(numbers, texts, strict=True)
    ]


def count(value: float) -> str:
    """A number of tokens: exact below a million, then like ``2.880M``; NaN gives ``-``."""
    if math.isnan(value):
        return MISSING
    for limit, suffix in ((1e9, "G"), (1e6, "M")):
        if value >= limit:
            return significant(value / limit) + suffix
    return f"{value:.0f}"


SPACE = "\u2423"  # open box
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", '"': '\\"', " ": SPACE}

# What is invisible, joins its neighbour, reorders the line or is no character at all:
# marks, controls and formats (bidi, zero width), surrogates, private use, unassigned, separators.
_HIDDEN_CATEGORIES = ("M", "C", "Z")


def readable_token(text: str) -> str:
    """Quote a token and make every character of it visible.

    Spaces become ``\u2423``; newlines, tabs, control, combining, bidi and zero-width characters
    become escapes, and so does the replacement character that a partial UTF-8 sequence decodes
    to. Byte-fallback tokens such as ``<0x0A>`` stay as they are written in the vocabulary.
    """
    return '"' + "".join(map(_visible, text)) + '"'


def _visible(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    hidden = unicodedata.category(character).startswith(_HIDDEN_CATEGORIES)
    # Width 0 catches what the categories miss, such as conjoining Hangul vowels.
    if hidden or character == "\ufffd" or cell_len(character) == 0:
        return escape(character)
    return character


ROUNDED = "Numbers have 4 significant digits; counts are exact."


@dataclass(frozen=True)
class ReadableTable:
    """Cells of text."""

    # of each column; a header of two parts stands below its first part, which it shares with its
    # neighbours
    headers: Sequence[tuple[str, ...]]
    rows: Sequence[Sequence[str]]  # a cell a column
    numeric: Sequence[bool]  # of each column, whether it holds numbers
    notes: Sequence[str] = ()  # what stands below
    title: str = ""  # what stands above; empty: nothing
    label: str = ""  # what a text refers to it by; empty: nothing


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
