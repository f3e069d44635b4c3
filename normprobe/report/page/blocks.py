"""What sections of the page are made of: words, tables, curves, dots, shades over pictures."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.report.charts import Chart
from normprobe.report.page.markup import Markup, block
from normprobe.report.readable import MISSING, ReadableTable, count, readable_token, significant

#: May hold empty fields.
_COUNTS = frozenset(
    ["tokens", "samples", "count", "nonfinite", "hidden_size", "decoder_layers", "parameters"]
)
_NAMES = ("stage", "group", "rows", "table")  # hold names of the schema
_LONGEST = 200  # rows
_LONG = 40  # characters that one line may have


def shown_table(rows: pd.DataFrame, most: int = _LONGEST) -> Markup:
    """Rows as they are, numbers short, tokens with every character visible."""
    columns = [(str(name).replace("_", " "), _kind(rows[name])) for name in rows]
    shown = [
        [_text(name, value) for name, value in row.items()]
        for row in rows.head(most).to_dict("records")
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


def printed(readable: ReadableTable) -> list[Markup]:
    """A table with its title and notes. The parts of a header stand behind each other."""
    headers = [" ".join(parts) for parts in readable.headers]
    rows = pd.DataFrame([*map(list, readable.rows)], columns=headers)
    return [heading(readable.title), shown_table(rows), *map(note, readable.notes)]


Grid = dict[str, Any]


def grid_of(
    label: str,
    values: NDArray[np.float64],
    *,
    middle: float,
    end: float,
    log: bool = False,
) -> Grid:
    """One grid of cells.

    Args:
        label: what is drawn.
        values: ``[down, across]``; NaN leaves a cell bare.
        middle: the number without colour; larger ones are warm, smaller ones cool.
        end: the number of full colour.
        log: colours follow the logarithm.
    """
    return {
        "label": label,
        "values": [[_short(value) for value in row] for row in values],
        "middle": middle,
        "end": end,
        "log": log,
    }


def named(grid: Grid, words: tuple[str, str], rows: Sequence[Any], columns: Sequence[Any]) -> Grid:
    """A grid whose rows and columns have names."""
    return grid | {"words": list(words), "rows": list(rows), "columns": list(columns)}


def laid_over(grid: Grid, picture: int, x: NDArray[np.float64], y: NDArray[np.float64]) -> Grid:
    """A grid that lies over a picture."""
    edges = {name: [round(float(edge), 4) for edge in ends] for name, ends in (("x", x), ("y", y))}
    return grid | {"picture": picture} | edges


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None


def heading(text: str) -> Markup:
    """The title of a part of a section."""
    return block("heading", text)


def sentence(text: str) -> Markup:
    """What the numbers say; nothing where they say nothing."""
    return block("sentence", text)


def first_sentence(text: str) -> str:
    """The first sentence."""
    return re.split(r"(?<=[a-z0-9\])]\.) (?=[A-Z])", text, maxsplit=1)[0]


def note(text: str) -> Markup:
    """What the words of a table or a figure mean."""
    return block("note", text)


def asked(text: str, pictures: list[str]) -> Markup:
    """What a model was asked: the text, and data URLs of its pictures."""
    return block("asked", text, pictures)


def picture(name: str, url: str) -> Markup:
    """An image with its name."""
    return block("picture", name, url)


def curves(charts: list[Chart]) -> Markup:
    """Charts over decoder layers, one of them shown at a time."""
    return block("figure", "curves", charts)


def side_by_side(charts: list[Chart]) -> Markup:
    """Charts over decoder layers side by side, read at the same layer."""
    return block("figure", "panels", charts)


def dots(rows: dict[str, Any]) -> Markup:
    """Means as dots, of ``dots.dots_of``."""
    return block("figure", "dots", rows)


def scatter(points: Sequence[dict[str, Any]], x: str, y: str) -> Markup:
    """Points with intervals in two directions, of ratios ``x`` and numbers ``y``."""
    return block("figure", "scatter", {"points": points, "x": x, "y": y})


def grid(maps: dict[str, Any]) -> Markup:
    """Cells in shades: ``maps`` of ``grids.grid_of``, and the ``pictures`` below them."""
    return block("figure", "grid", maps)
