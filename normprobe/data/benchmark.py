"""What a benchmark has to say about itself: its questions, its wording, where it is published."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL import Image


@dataclass(frozen=True)
class Question:
    """One row of a benchmark, not read yet.

    Attributes:
        benchmark: name of the benchmark.
        key: identifies the row within the data set.
        load: reads the row: the prompt and the decoded image. Raises NormprobeError on a bad row,
            so that whoever iterates decides what a bad row means.
    """

    benchmark: str
    key: str
    load: Callable[[], tuple[str, Image.Image]]

    @property
    def id(self) -> str:
        """Unique within a data set."""
        return f"{self.benchmark}/{self.key}"


@dataclass(frozen=True)
class HubSource:
    """Where a benchmark is published.

    Attributes:
        repos: data set ids that hold the same rows, tried in this order.
        config: configuration name; ``None`` where there is one only.
        split: split name.
    """

    repos: tuple[str, ...]
    config: str | None
    split: str


@dataclass(frozen=True)
class Benchmark:
    """A benchmark that ``--data`` can name.

    Attributes:
        name: as in ``--data NAME``.
        template: the prompt as a format string over column names.
        suffixes: endings of the published files.
        hub: where the data set is published.
        read_file: questions of a published file.
        read_table: questions of a table in the hub's columns; the second argument names the table
            in errors.
    """

    name: str
    template: str
    suffixes: tuple[str, ...]
    hub: HubSource
    read_file: Callable[[Path], list[Question]]
    read_table: Callable[[pa.Table, str], list[Question]]


def fill_template(template: str, cells: Mapping[str, Any]) -> str:
    r"""Fill a prompt template line by line, without the lines whose cell is absent.

    >>> fill_template("{hint}\n{question}", {"hint": "", "question": "What is it?"})
    'What is it?'
    """
    lines = []
    for line in template.split("\n"):
        names = [name for _, name, _, _ in string.Formatter().parse(line) if name]
        if all(_is_present(cells.get(name)) for name in names):
            lines.append(line.format_map(cells))
    return "\n".join(lines)


def _is_present(value: Any) -> bool:
    """Tell an empty cell from a value.

    Published files spell an empty cell as nothing, null, NaN or "nan". The strings None, NA and
    null stay: they are answers to choose from.
    """
    return value is not None and str(value) not in ("", "nan")
