"""What a terminal shows: tables over layers; and whatever they hold, it is not commanded by it."""

import io
import os
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
import pytest
from rich.text import Text
from support.flat import tidied
from support.printed import assert_fits, printed

from normprobe.report.terminal import (
    NumberColumn,
    add_column,
    new_table,
    print_by_layer,
    print_sentence,
    terminal_console,
)

ATTACK = "\x1b]0;owned\x07\x9b2J\u202ebackwards\r"


def test_escapes_in_titles_cells_and_sentences_are_shown() -> None:
    file = io.StringIO()
    console = terminal_console(file, width=80)
    table = new_table(f"title {ATTACK}")
    add_column(table, Text(f"header {ATTACK}"))
    table.add_row(Text(ATTACK))
    table.add_row(ATTACK)
    console.print(table)
    print_sentence(f"sentence {ATTACK}", console)
    text = file.getvalue()
    assert not set(text) & set(ATTACK) - set("]0;owned2Jbackwards")
    assert text.count(r"\x1b]0;owned") == 5


def test_colours_of_our_own_reach_a_terminal(monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    file = io.StringIO()
    terminal_console(file).print(Text("loud\x1b", style="bold"))
    assert file.getvalue() == "\x1b[1mloud\\x1b\x1b[0m" + os.linesep


# --- tables over layers --------------------------------------------------------------------------

COLUMNS = [
    NumberColumn((header, group), header, {"group": group}, doubted=doubted)
    for header, doubted in (("size", ""), ("turn", "doubted"))
    for group in ("visual", "text")
]


def by_layer(last: int) -> pd.DataFrame:
    """A flat table of numbers that tell group, layer and column; layer 0 has a size alone."""
    layer = np.arange(last + 1)
    return pd.concat(
        pd.DataFrame({"layer": layer, "group": group, "size_mean": add + layer}).assign(
            turn_mean=np.where(layer > 0, add + layer / 1000, np.nan), doubted=False
        )
        for add, group in ((100, "visual"), (500, "text"), (900, "special"))
    )


def lines_of(
    table: pd.DataFrame, columns: Sequence[NumberColumn] = COLUMNS, notes: Sequence[str] = ()
) -> list[list[str]]:
    show = partial(print_by_layer, columns=columns, notes=notes, file="made.csv")
    tidy = tidied("layers", table)
    text = printed(lambda rows, console: show("Made", rows, console=console), tidy)
    return [line.split() for line in text.splitlines()]


def test_each_number_stands_in_its_layer_below_its_header() -> None:
    lines = lines_of(by_layer(3), notes=["a note"])
    assert lines[:3] == [["Made"], ["size", "turn"], ["layer", *["visual", "text"] * 2]]
    assert lines[4] == ["0", "100.0", "500.0", "-", "-"]
    assert lines[6] == ["2", "102.0", "502.0", "100.0", "500.0"]
    assert lines[8] == ["a", "note"]


def test_a_header_of_three_lines_names_what_columns_share_once() -> None:
    names = [("a", "x"), ("a", "y"), ("b", "y"), ("b", "y")]
    columns = [NumberColumn((*name, f"{n}"), "size", {}) for n, name in enumerate(names)]
    lines = lines_of(by_layer(0).query("group == 'text'"), columns)
    assert lines[1:4] == [["a", "b"], ["x", "y", "y"], ["layer", "0", "1", "2", "3"]]


def test_a_row_that_is_missing_is_a_dash_and_a_column_is_left_out() -> None:
    table = by_layer(3)
    table = table[~((table["layer"] == 2) & (table["group"] == "text"))]
    assert lines_of(table)[6] == ["2", "102.0", "-", "100.0", "-"]
    assert lines_of(table.drop(columns="turn_mean"))[6] == ["2", "102.0", "-"]
    nothing = table.assign(size_mean=np.nan, turn_mean=np.nan)
    assert lines_of(nothing)[6] == ["2", "-", "-", "-", "-"]


def test_of_a_deep_model_some_layers_are_shown_and_it_says_so() -> None:
    lines = lines_of(by_layer(80))
    rows = [line for line in lines if len(line) == 5 and line[0].isdecimal()]
    assert [int(row[0]) for row in rows] == [0, 1, *range(5, 81, 5)]
    assert [row[1] for row in rows] == [f"{100 + int(row[0])}.0" for row in rows]
    assert ["18", "of", "81", "layers", "shown;", "made.csv", "has", "all."] in lines
    assert not [line for line in lines_of(by_layer(32)) if "shown;" in line]


def test_a_doubted_number_that_is_shown_has_a_star() -> None:
    table = by_layer(80)
    table["doubted"] = (table["layer"] == 11) & (table["group"] == "text")
    note = ["*", "below", "what", "the", "stored", "numbers", "resolve."]
    assert note not in lines_of(table)  # layer 11 is not shown
    lines = lines_of(table[table["layer"] <= 20])
    (row,) = (line for line in lines if line[:1] == ["11"])
    assert row == ["11", "111.0", "511.0", "100.0", "500.0*"]
    assert note in lines


def test_tokens_left_out_are_told_with_their_layers() -> None:
    table = by_layer(3)
    table["nonfinite"] = (table["layer"] == 3).astype(int)
    assert ["Left", "out", "as", "non-finite:", "3", "at", "layer", "3."] in lines_of(table)


@pytest.mark.parametrize("factor", [1.0, 1.2345e-7, -1.2345e9])
def test_every_line_fits(factor: float) -> None:
    table = by_layer(40)
    table[["size_mean", "turn_mean"]] *= factor
    show = partial(print_by_layer, columns=COLUMNS * 2, notes=(), file="made.csv")
    tidy = tidied("layers", table)
    assert_fits(lambda rows, console: show("Made", rows, console=console), tidy)
