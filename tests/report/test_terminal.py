"""Whatever a table holds, a terminal is not commanded by it."""

import io
import os

from rich.text import Text

from normprobe.report.terminal import add_column, new_table, print_sentence, terminal_console

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
