"""What every table on a terminal shares: its frame, its columns, its notes, its width."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TextIO

import pandas as pd
from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from normprobe.console_state import has_colour
from normprobe.errors import visible
from normprobe.report.readable import MISSING, ReadableTable, count, readable_token, significant
from normprobe.report.verdict import Verdict
from normprobe.schema import TEXT, VISUAL
from normprobe.tidy import BAND, select

#: Columns of a file, and of prose on wider terminals.
WIDTH = 80
_NARROWEST = 60
_FOLDED = 12  # columns: the least that running text in a table is given


def terminal_console(file: TextIO, width: int | None = None) -> Console:
    """A console that shows the control characters of what it prints, and obeys none.

    With ``NO_COLOR`` it prints neither colours nor bold.
    """
    if width is None and not (file.isatty() or os.environ.get("COLUMNS")):
        width = WIDTH
    console = Console(file=file, width=width, color_system="auto" if has_colour() else None)
    console.width = max(console.width, _NARROWEST)
    console.push_render_hook(_Shown())
    return console


class _Shown(RenderHook):
    """Passes everything that a console prints through ``visible``, whatever table made it."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Visible(renderable) for renderable in renderables]


class _Visible:
    """A renderable whose text is shown, not obeyed."""

    def __init__(self, renderable: ConsoleRenderable) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style, control in console.render(self._renderable, options):
            shown = text if text.isprintable() else visible(text, keep="\n")
            yield Segment(shown, style, control)


def new_table(title: str | None) -> Table:
    """An empty table with a title on the left and one rule below the headers."""
    return Table(
        title=None if title is None else Text(title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )


def print_table(table: Table, console: Console, *, keys: int = 1) -> None:
    """Print it, with less room between the columns where it would not fit.

    Where it still does not, the columns that are left stand in tables below, beside the same keys.
    """
    # Two spaces between columns; one where the numbers are all as wide as they get.
    if not _fits(table, table.columns, console):
        table.padding = 0
    key, rest = table.columns[:keys], table.columns[keys:]
    for place, columns in enumerate(_split(table, key, rest, console)):
        if place:
            console.print()
        part = _part(table, [*key, *columns])
        part.title = None if place else table.title
        console.print(part)


def _split(
    table: Table, key: Sequence[Column], rest: Sequence[Column], console: Console
) -> Iterator[list[Column]]:
    """As many columns as fit beside the key, again and again; those of one header together."""
    block: list[Column] = []
    for column in rest:
        if block and not _fits(table, [*key, *block, column], console):
            start = len(block)
            if not _opens_header(column):
                start = max((i for i, one in enumerate(block) if _opens_header(one)), default=0)
            start = start or len(block)  # wider than the terminal by itself
            yield block[:start]
            block = block[start:]
        block.append(column)
    yield block


def _opens_header(column: Column) -> bool:
    """Whether what it stands under begins here: a shared header stands above its first column."""
    return not str(column.header).startswith("\n")


def _fits(table: Table, columns: Sequence[Column], console: Console) -> bool:
    numbers = _part(table, [column for column in columns if column.no_wrap])
    folded = sum(not column.no_wrap for column in columns)
    unbounded = console.options.update(max_width=10 * WIDTH)
    needed = console.measure(numbers, options=unbounded).maximum + folded * _FOLDED
    return needed <= console.width


def _part(table: Table, columns: Sequence[Column]) -> Table:
    """Some columns of a table, without its title."""
    part = new_table(None)
    part.padding = table.padding
    for column in columns:
        part.add_column(
            column.header,
            justify=column.justify,
            no_wrap=column.no_wrap,
            overflow=column.overflow,
        )
    for row, *cells in zip(table.rows, *(column.cells for column in columns), strict=True):
        part.add_row(*cells, style=row.style)
    return part


def add_column(table: Table, header: str | Text, *, left: bool = False) -> None:
    """Add a column, of numbers unless ``left``."""
    # Crop, never wrap: one row of numbers is one line.
    table.add_column(header, justify="left" if left else "right", no_wrap=True, overflow="ellipsis")


def print_notes(console: Console, *lines: str) -> None:
    """Print what the table's words mean, and an empty line; empty notes are left out.

    The lines are made for 80 columns; on a narrower terminal they are one paragraph.
    """
    separator = "\n" if console.width >= WIDTH else " "
    notes = separator.join(filter(None, lines))
    if notes:
        _print_prose(Text(notes, style="dim"), console)
    console.print()


def print_facts(facts: Mapping[str, object], console: Console) -> None:
    """Print named facts below each other, and an empty line; empty facts are left out."""
    known = {name: fact for name, fact in facts.items() if fact not in (None, "")}
    table = Table.grid(padding=(0, 1, 0, 0))
    for name, fact in known.items():
        table.add_row(Text(f"{name}:"), Text(str(fact)))
    console.print(table)
    console.print()


def words(name: str) -> str:
    """A name of the CSV files as words."""
    return name.replace("_", " ")


def print_sentence(sentence: str, console: Console) -> None:
    """Print a sentence, and an empty line; nothing of an empty one."""
    if sentence:
        _print_prose(Text(f"{sentence}\n"), console)


def print_verdict(verdict: Verdict, console: Console) -> None:
    """Print what a run says, a line each finding, and an empty line; nothing of an empty one."""
    if not verdict:
        return
    width = min(console.width, WIDTH)
    for line in Text(verdict.headline, style="bold").wrap(console, width):
        line.rstrip()
        console.print(line)
    for finding in verdict.findings:
        for place, line in enumerate(Text(finding.words).wrap(console, width - 2)):
            line.rstrip()
            console.print(Text("  " if place else "- ") + line)
    console.print()


def _print_prose(text: Text, console: Console) -> None:
    """Longer lines than 80 columns are hard to read."""
    console.print(text, width=min(console.width, WIDTH))


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


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers over layers: a quantity of a tidy table."""

    # lines below each other; what it shares with its left neighbour stands once
    header: tuple[str, ...]
    quantity: str  # whose numbers
    where: Mapping[str, object] = field(default_factory=dict)  # of the rows that hold these values
    written: Callable[[float], str] = significant  # how a number is written
    estimate: str = "mean"  # which of its columns
    doubted: str = ""  # a quantity that is 1 where a number gets a star; empty: none

    def cells(self, table: pd.DataFrame) -> dict[int, str]:
        """What stands in each layer."""
        rows, stars = select(table, self.quantity, **self.where), dict[int, float]()
        if self.doubted:
            doubts = select(table, self.doubted, **self.where)
            stars = dict(zip(doubts["layer"], doubts["mean"], strict=True))
        return {
            int(layer): self.written(float(value)) + "*" * (stars.get(layer) == 1)
            for layer, value in zip(rows["layer"], rows[self.estimate], strict=True)
        }


class BandColumn(NumberColumn):
    """The band of a number, in brackets."""

    def cells(self, table: pd.DataFrame) -> dict[int, str]:
        """What stands in each layer."""
        ends = select(table, self.quantity, **self.where)[["layer", *BAND]].dropna()
        return {
            int(layer): f"[{self.written(low)}, {self.written(high)}]"
            for layer, low, high in ends.itertuples(index=False)
        }


def print_by_layer(
    title: str,
    table: pd.DataFrame,
    columns: Sequence[NumberColumn],
    console: Console,
    notes: Sequence[str],
    file: str,
) -> None:
    """Print numbers layer by layer: of a deep model some, and a note says that ``file`` has all."""
    # A model without visual tokens has no column of them.
    columns = [c for c in columns if {*c.cells(table).values()} - {MISSING}] or columns
    drawn, depth = new_table(title), len(columns[0].header)
    add_column(drawn, "\n" * (depth - 1) + "layer")
    above: tuple[str, ...] = ()
    styles = [GROUP_STYLES.get(column.header[-1], "") for column in columns]
    for column, style in zip(columns, styles, strict=True):
        alike = [a == b for a, b in zip(above, column.header[:-1], strict=False)]
        shared = [*alike, False].index(False)
        lines = ("",) * shared + column.header[shared:-1]
        head = Text("".join(f"{line}\n" for line in lines))
        add_column(drawn, head.append(column.header[-1], style=style))
        above = column.header
    cells = [column.cells(table) for column in columns]
    layers = sorted(int(layer) for layer in table["layer"].unique())
    shown = selected_layers(layers)
    for layer in shown:
        texts = (of.get(layer, MISSING) for of in cells)
        drawn.add_row(Text(str(layer)), *map(Text, texts, styles))
    print_table(drawn, console)
    some = f"{len(shown)} of {len(layers)} layers shown; {file} has all."
    doubt = any(of[layer].endswith("*") for of in cells for layer in shown if layer in of)
    notes = [*notes, "* below what the stored numbers resolve." * doubt]
    print_notes(console, *notes, some * (shown != layers), nonfinite_note(table, "layer"))


def selected_layers(layers: Sequence[int]) -> list[int]:
    """All layers, or of a deep model the input, layer 1, even steps and the last."""
    if len(layers) <= _MOST_LAYERS:
        return list(layers)
    step = next((step for step in _STEPS if len(layers) <= 20 * step), len(layers))
    chosen = {*layers[:2], layers[-1]}
    return [layer for layer in layers if layer in chosen or layer % step == 0]


def nonfinite_note(table: pd.DataFrame, key: Literal["layer", "stage"]) -> str:
    """How many tokens were left out as non-finite, and where; empty where none were."""
    bad = select(table, "nonfinite")
    bad = bad[bad["mean"] > 0]
    if bad.empty:
        return ""
    where = [words(str(place)) for place in bad[key].unique()]
    named = ", ".join(where[:4]) + (", ..." if len(where) > 4 else "")
    return f"Left out as non-finite: {count(float(bad['mean'].sum()))} at {key} {named}."
