"""Cells, rows and notes that the tables of several measurements share."""

from collections.abc import Sequence
from typing import Literal

import pandas as pd
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from normprobe.report.readable_table import ReadableTable
from normprobe.report.readable_token import readable_token
from normprobe.report.significant import MISSING, count
from normprobe.report.terminal import add_column, new_table, print_notes, print_table, words
from normprobe.schema import TEXT, VISUAL

#: The hues of the figures, as far as 256-colour terminals know them.
GROUP_STYLES = {VISUAL: "color(173)", TEXT: "color(74)"}
_MOST_LAYERS = 33  # a 32-layer model and its input: one screen
_STEPS = (2, 3, 4, 5, 8, 10, 20, 50, 100)
_TOKEN_WIDTH = 20
ALIGNED = ", visual tokens aligned"  # in a title


def token_cell(token: object, *, special: bool) -> Text:
    """A token in quotes, cut to its column, with a star where it is special."""
    mark = "* " if special else "  "
    # Rows of a visual table have no text.
    text = readable_token(token) if isinstance(token, str) and token else MISSING
    if cell_len(mark + text) > _TOKEN_WIDTH:
        # A terminal shows a wide character in two cells: cut by cells, not by characters.
        text = set_cell_size(text, _TOKEN_WIDTH - len(mark) - 1).rstrip() + "\u2026"
    return Text(mark + text)


def print_readable(table: ReadableTable, console: Console) -> None:
    """Print a table as it is to be read; a shared header stands above the first of its columns."""
    shown, lines, above = new_table(table.title), list[list[str]](), ""
    for header in table.headers:
        shared = header[0] if len(header) > 1 else ""
        lines.append([*(shared.split() if shared != above else []), header[-1]])
        above = shared
    depth = max(map(len, lines))
    for words_of, numeric in zip(lines, table.numeric, strict=True):
        add_column(shown, "\n" * (depth - len(words_of)) + "\n".join(words_of), left=not numeric)
    for row in table.rows:
        shown.add_row(*map(Text, row))
    print_table(shown, console)
    print_notes(console, *table.notes)


def selected_layers(layers: Sequence[int]) -> list[int]:
    """All layers, or of a deep model the input, layer 1, even steps and the last."""
    if len(layers) <= _MOST_LAYERS:
        return list(layers)
    step = next((step for step in _STEPS if len(layers) <= 20 * step), len(layers))
    chosen = {*layers[:2], layers[-1]}
    return [layer for layer in layers if layer in chosen or layer % step == 0]


def nonfinite_note(table: pd.DataFrame, key: Literal["layer", "stage"]) -> str:
    """How many tokens were left out as non-finite, and where; empty where none were."""
    if "nonfinite" not in table:
        return ""
    bad = table[table["nonfinite"].fillna(0) > 0]
    if bad.empty:
        return ""
    where = [words(str(place)) for place in bad[key].unique()]
    named = ", ".join(where[:4]) + (", ..." if len(where) > 4 else "")
    return f"Left out as non-finite: {count(float(bad['nonfinite'].sum()))} at {key} {named}."
