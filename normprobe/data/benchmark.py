"""What a benchmark has to say about itself: its questions, its wording, where it is published."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image

    from normprobe.data.bad_rows import BadRows
    from normprobe.data.tables import Rows

#: The instruction that LLaVA-1.5 was evaluated with, and lmms-eval's for multiple choice.
ANSWER_WITH_LETTER = "Answer with the option's letter from the given choices directly."


@dataclass(frozen=True)
class Question:
    """One row of a benchmark, not read yet.

    Attributes:
        benchmark: name of the benchmark.
        key: identifies the row within the data set.
        load: reads the row: the prompt and the decoded image, None where it has none. Raises
            ``BadRow`` on a bad row, so that whoever iterates decides what that means.
        has_image: False where the row is known to be text alone.
    """

    benchmark: str
    key: str
    load: Callable[[], tuple[str, Image.Image | None]]
    has_image: bool = True

    @property
    def id(self) -> str:
        """Unique within a data set."""
        return f"{self.benchmark}/{self.key}"


@dataclass(frozen=True)
class Source:
    """The questions of one table, file or folder.

    Attributes:
        benchmark: whose questions they are.
        template: their wording, as a format string.
        label: short; tells the sources of one benchmark apart.
        where: JSON-able record of where they come from.
        questions: all of them.
    """

    benchmark: str
    template: str
    label: str
    where: dict[str, Any]
    questions: list[Question]


@dataclass(frozen=True)
class HubSource:
    """One place where rows are published.

    Attributes:
        repo: data set id.
        config: configuration name; ``None`` where there is one only.
        split: split name.
    """

    repo: str
    config: str | None
    split: str


@dataclass(frozen=True)
class Benchmark:
    """A benchmark that ``--data`` can name.

    Attributes:
        name: as in ``--data NAME``. Published files are recognised by it, or by ``columns``.
        template: the prompt as a format string over cells.
        subsets: as in ``--data NAME:SUBSET``, the first is the default; each with the places that
            publish its rows, tried in this order.
        columns: of the table on the hub; they tell it from other benchmarks.
        read: questions of a table. Bad rows go to the second argument.
        options_template: the prompt where a table holds the options in columns A, B, ... and the
            hub's does not.
    """

    name: str
    template: str
    subsets: Mapping[str, tuple[HubSource, ...]]
    columns: tuple[str, ...]
    read: Callable[[Rows, BadRows], list[Question]]
    options_template: str | None = None

    def wording(self, columns: Sequence[str]) -> str:
        """The template for a table with these columns."""
        return self.options_template if self.options_template and "A" in columns else self.template


def moved(name: str, config: str | None, split: str) -> tuple[HubSource, ...]:
    """The places of a data set of lmms-eval, which moved to another organisation in 2026."""
    return tuple(
        HubSource(f"{organisation}/{name}", config, split)
        for organisation in ("lmms-lab-encoder", "lmms-lab")
    )


def fill_template(template: str, cells: Mapping[str, Any]) -> str:
    r"""Fill a prompt template line by line, without the lines whose cell is absent.

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
    r"""Options as lines, without the absent ones.

    >>> lettered([("A", "cat"), ("B", "dog"), ("C", None)])
    'A. cat\nB. dog'
    """
    return "\n".join(f"{letter}. {option}" for letter, option in options if is_present(option))


def letters(options: Sequence[Any]) -> list[tuple[str, Any]]:
    """Options of a list with their letters."""
    return list(zip(string.ascii_uppercase, options, strict=False))


def is_present(value: Any) -> bool:
    """Tell an empty cell from a value.

    Published files spell an empty cell as nothing, null, NaN or "nan". The strings None, NA and
    null stay: they are answers to choose from.
    """
    return value is not None and str(value) not in ("", "nan")
