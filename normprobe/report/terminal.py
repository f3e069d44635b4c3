"""What every table on a terminal shares: its frame, its columns, its notes, 80 columns of room."""

from collections.abc import Iterator
from typing import TextIO

from rich import box
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from normprobe.foreign_text import visible

WIDTH = 80


def terminal_console(file: TextIO, width: int | None = None) -> Console:
    """A console that shows the control characters of what it prints, and obeys none.

    Args:
        file: where it prints.
        width: in columns; None: that of the terminal.
    """
    console = Console(file=file, width=width)
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
            yield Segment(visible(text, keep="\n"), style, control)


def new_table(title: str) -> Table:
    """An empty table with a title on the left and one rule below the headers."""
    return Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )


def print_table(table: Table, console: Console) -> None:
    """Print it, with less room between the columns where it would not fit."""
    # Two spaces between columns; one where the numbers are all as wide as they get.
    unbounded = console.options.update(max_width=10 * WIDTH)
    if console.measure(table, options=unbounded).maximum > WIDTH:
        table.padding = 0
    console.print(table)


def add_column(table: Table, header: str | Text, *, left: bool = False) -> None:
    """Add a column, of numbers unless ``left``."""
    # Crop, never wrap: one row of numbers is one line.
    table.add_column(header, justify="left" if left else "right", no_wrap=True, overflow="ellipsis")


def print_notes(console: Console, *lines: str) -> None:
    """Print what the table's words mean, and an empty line; empty notes are left out."""
    for line in lines:
        if line:
            console.print(Text(line, style="dim"))
    console.print()


def words(name: str) -> str:
    """A name of the CSV files as words."""
    return name.replace("_", " ")


def print_sentence(sentence: str, console: Console) -> None:
    """Print what a table says, in words, and an empty line; nothing where it says nothing."""
    if sentence:
        console.print(f"{sentence}\n", markup=False, highlight=False)
