"""Tables as Markdown, in the form that GitHub, pandoc and notebooks render."""

import re
from collections.abc import Iterable

from normprobe.report.readable_table import ReadableTable

# What begins an element of Markdown or HTML; a backslash before it makes it text again.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&$!])")


def markdown(table: ReadableTable) -> str:
    """A table as Markdown, its notes below it; ends with a newline.

    Markdown has one row of headers: the parts of a header stand behind each other.
    """
    rules = ["--:" if numeric else "---" for numeric in table.numeric]
    lines = [_row(_text(" ".join(parts)) for parts in table.headers), _row(rules)]
    lines += [_row(map(_text, row)) for row in table.rows]
    notes = [f"\n{_text(note)}" for note in table.notes]
    title = [f"**{_text(table.title)}**\n"] if table.title else []
    return "\n".join([*title, *lines, *notes]) + "\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)
