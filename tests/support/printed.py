"""What a function prints on a terminal, and whether it fits."""

import io

from rich.cells import cell_len
from rich.console import Console

COUNTED = (
    "layer",
    "rank",
    "base_rank",
    "base_id",
    "samples",
    "hidden_size",
    "token_id",
    "nonfinite",
)


def printed(show, *tables, width=80):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    show(*tables, console)
    return console.file.getvalue()


def assert_fits(show, *tables):
    """Every line fits, and nothing is cut or wrapped."""
    at_80 = printed(show, *tables)
    assert max(cell_len(line) for line in at_80.splitlines()) <= 80
    # With all the room of the world the lines are the same: nothing was squeezed to fit.
    assert at_80 == printed(show, *tables, width=300)


def extreme(table):
    """The same table with numbers as wide as they get."""
    table = table.copy()
    for column in table.select_dtypes("number"):
        if column in ("tokens", "count"):
            table[column] = 123_456_789
        elif column not in COUNTED:
            table[column] = -0.99999 if column == "cosine_mean" else 1.23456e-4
    return table
