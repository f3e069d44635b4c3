"""What every table on a terminal shares: its frame, its columns, its notes, 80 columns of room."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 80


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
