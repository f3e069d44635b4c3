"""What a function prints on a terminal, and whether it fits."""

import io
from collections import Counter

from rich.cells import cell_len
from rich.console import Console

from normprobe.tidy import QUANTITY

COUNTED = (
    "layer",
    "rank",
    "base_rank",
    "base_id",
    "samples",
    "step",
    "training_step",
    "hidden_size",
    "token_id",
    "nonfinite",
)


def printed(show, *tables, width=80):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    show(*tables, console)
    return console.file.getvalue()


def words_of(findings):
    """What findings say, a line each."""
    return "\n".join(finding.words for finding in findings if finding.words)


def assert_fits(show, *tables):
    """Every line fits, and nothing is cut; columns that do not fit stand below the others."""
    at_80, wide = printed(show, *tables), printed(show, *tables, width=300)
    assert max(cell_len(line) for line in at_80.splitlines()) <= 80
    # With all the room of the world the words are the same: nothing was squeezed to fit.
    assert not Counter(_words(wide)) - Counter(_words(at_80))


def _words(text):
    return text.replace("\u2500", "").split()


def extreme(table):
    """The same table, flat or tidy, with numbers as wide as they get."""
    table = table.copy()
    if QUANTITY in table:
        return _extreme_of_tidy(table)
    for column in table.select_dtypes("number"):
        if column in ("tokens", "count"):
            table[column] = 123_456_789
        elif column not in COUNTED:
            table[column] = -0.99999 if column == "cosine_mean" else 1.23456e-4
    return table


def _extreme_of_tidy(table):
    quantities = table[QUANTITY]
    for column in table.select_dtypes("number"):
        if column == "tokens":
            table[column] = 123_456_789
        elif column not in COUNTED:
            table[column] = table[column].astype(float)
            table.loc[~quantities.isin(COUNTED), column] = 1.23456e-4
    if "mean" in table:
        table.loc[quantities == "cosine", "mean"] = -0.99999
    return table
