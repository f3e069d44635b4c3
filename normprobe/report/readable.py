"""Numbers, tokens and tables as people read them, however they are spelled in the end."""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from rich.cells import cell_len

from normprobe.errors import escape, visible
from normprobe.schema import MODALITIES, OTHER_MEDIA, PAIR
from normprobe.tidy import QUANTITY, is_tidy, keys_of, wide

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
CHOSEN = "The file has all quantities and token groups, with intervals and deviations."


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


def readable_table(table: pd.DataFrame, quantities: Sequence[str] | None = None) -> ReadableTable:
    """A table of a run with its numbers rounded; of a tidy one its pivot.

    Columns of whole numbers stay exact. Tokens are quoted, and every character of them is visible.

    Args:
        table: of a run.
        quantities: which of a tidy table, in this order; None: all.
    """
    names, is_side_by_side = [parts_of(name) for name in table], is_tidy(table)
    if is_side_by_side:
        table = pivot(table, quantities)
        names = [tuple(part.replace("_", " ") for part in parts_of(name)) for name in table]
    columns = [table.iloc[:, place] for place in range(table.shape[1])]
    cells = [_cells(name[0], column) for name, column in zip(names, columns, strict=True)]
    return ReadableTable(
        [tuple(map(visible, name)) for name in names],
        list(zip(*cells, strict=True)),
        [_is_numeric(column) for column in columns],
        [ROUNDED, *([CHOSEN] if is_side_by_side else [])],
    )


def parts_of(header: object) -> tuple[str, ...]:
    """The parts of a header of ``pivot``; others have one."""
    return tuple(map(str, header)) if isinstance(header, tuple) else (str(header),)


#: Keys whose values stand side by side, below each quantity, where rows are layers.
_ACROSS = ("group", "query", "part")


def pivot(table: pd.DataFrame, quantities: Sequence[str] | None = None) -> pd.DataFrame:
    """The numbers of a tidy table side by side, without their other estimates.

    Args:
        table: tidy.
        quantities: which, in this order; None: all.

    Returns:
        A row a layer, with a column of a quantity and token group, ``("norm", "visual")``, of
        visual and text tokens alone where there are both. Of a table without layers a row a cell,
        with a column a quantity. Keys come first.
    """
    numbers, keys = wide(table), keys_of(table)
    names = [name for name in quantities or dict.fromkeys(table[QUANTITY]) if name in numbers]
    across = [key for key in keys if key in _ACROSS and {"layer", "training_step"} & {*keys}]
    down = [key for key in keys if key not in across]
    if not across:
        return numbers[[*down, *names]]
    groups = numbers[across].drop_duplicates()
    if "group" in groups and {*MODALITIES} <= {*groups["group"]}:
        groups = groups[groups["group"].isin([PAIR, *MODALITIES, *OTHER_MEDIA])]
    rows = numbers[down].drop_duplicates().reset_index(drop=True)
    columns: dict[tuple[str, ...], pd.Series] = {(key,): rows[key] for key in down}
    for name in names:
        for group in groups.itertuples(index=False, name=None):
            own = numbers.merge(pd.DataFrame([group], columns=across))[[*down, name]]
            if own[name].notna().any():
                columns[name, *map(str, group)] = rows.merge(own, how="left")[name]
    made = pd.DataFrame(dict(enumerate(columns.values())))
    made.columns = pd.Index(list(columns), tupleize_cols=False)
    return made


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
