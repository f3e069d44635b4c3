"""The prompt of a question: a template over the cells of its row."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from normprobe.data.cells import is_present


def fill_template(template: str, cells: Mapping[str, Any]) -> str:
    r"""Fill a prompt template; a line with an absent cell is left out.

    >>> fill_template("{hint}\n{question}", {"hint": "", "question": "What is it?"})
    'What is it?'
    """
    lines = []
    for line in template.split("\n"):
        names = [name for _, name, _, _ in string.Formatter().parse(line) if name]
        if all(is_present(cells.get(name)) for name in names):
            lines.append(line.format_map(cells))
    return "\n".join(lines)


def lettered(options: Iterable[tuple[str, Any]]) -> str:
    r"""Letters and options as lines; absent options are left out.

    >>> lettered([("A", "cat"), ("B", "dog"), ("C", None)])
    'A. cat\nB. dog'
    """
    return "\n".join(f"{letter}. {option}" for letter, option in options if is_present(option))


def letters(options: Sequence[Any]) -> list[tuple[str, Any]]:
    """Options of a list with their letters: A for the first, B for the second, ..."""
    return list(zip(string.ascii_uppercase, options, strict=False))
