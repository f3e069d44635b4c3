"""Questions before their rows are read, and the tables that hold them."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from normprobe.data.benchmarks import Benchmark
from normprobe.data.formats import Rows
from normprobe.data.images import decode_base64, decode_image_cell
from normprobe.data.rows import (
    BadRow,
    BadRows,
    Place,
    content_keys,
    is_present,
    key_cell,
    require_columns,
    text_cell,
    unique,
    whole_number_cell,
)
from normprobe.data.sample import Referent

if TYPE_CHECKING:
    from PIL import Image


class Content(NamedTuple):
    """What a row says, as ``Sample`` has it."""

    prompt: str
    images: tuple[Image.Image, ...] = ()
    referent: Referent | None = None


@dataclass(frozen=True)
class Question:
    """One row of a data set, not read yet.

    Attributes:
        benchmark: name of the benchmark; of one's own data ``text``, ``prompts`` or ``images``.
        key: identifies the row within the data set.
        load: reads the row and decodes its images. Raises ``BadRow`` if the row cannot be used.
        has_image: False where the row is known to be text alone.
    """

    benchmark: str
    key: str
    load: Callable[[], Content]
    has_image: bool = True

    @property
    def id(self) -> str:
        """Unique within a data set."""
        return f"{self.benchmark}/{self.key}"


@dataclass(frozen=True)
class Source:
    """The questions of one table, file or folder.

    Attributes:
        benchmark: as in ``Question``.
        template: their prompt, as a format string.
        label: short; tells apart the sources of one benchmark.
        where: JSON-able record of where they come from.
        questions: all of them.
    """

    benchmark: str
    template: str
    label: str
    where: dict[str, Any]
    questions: list[Question]


def all_questions(sources: Sequence[Source]) -> list[Question]:
    """The questions of all sources; where sources share a benchmark, the label joins the key."""
    names = [source.benchmark for source in sources]
    return [
        # POPE's three official files number their questions alike.
        replace(question, key=f"{source.label}/{question.key}")
        if names.count(source.benchmark) > 1
        else question
        for source in sources
        for question in source.questions
    ]


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


# Up to this length an image cell is the index of the row that holds the image; no encoded image
# is that short.
_MAX_REFERENCE = 64


def read_benchmark(benchmark: Benchmark, rows: Rows, bad: BadRows) -> list[Question]:
    """Read the questions of a benchmark from a table with the columns ``question`` and ``image``.

    An image is a struct of bytes and path, as the hub stores it, or text, as TSVs do: base64, or
    the ``index`` of the row that holds it.
    """
    require_columns(rows.columns, benchmark.required, rows.source)
    key = next((name for name in (benchmark.key, "index") if name in rows.columns), None)
    own = [name for name in benchmark.options if name in rows.columns]
    options = own or [name for name in string.ascii_uppercase if name in rows.columns]
    used = [name for name in (key, benchmark.group, "hint", *options) if name in rows.columns]
    require_columns(rows.columns, ["question", "image", *map(str, used)], rows.source)
    keyed: Iterable[tuple[int, Place, str]]  # number, place and key of each row
    if key is None:
        contents = content_keys(_content(rows, row, options) for row in range(len(rows)))
        keyed = zip(range(len(rows)), rows.places, contents, strict=True)
    else:
        keyed = _column_keys(benchmark, rows, key, bad)
    row_of = unique(keyed, key or "question", bad)
    load = partial(
        _load,
        rows,
        template=benchmark.wording(rows.columns),
        options=options,
        row_of=row_of if key == "index" else {},
        text_only=benchmark.text_only,
    )
    end = benchmark.copies_from  # row_of keeps the copies: an image cell may name any row
    return [
        Question(benchmark.name, name, partial(load, row))
        for name, (row, _) in row_of.items()
        if end is None or int(name) < end
    ]


def _column_keys(
    benchmark: Benchmark, rows: Rows, column: str, bad: BadRows
) -> Iterator[tuple[int, Place, str]]:
    """Number, place and key of each row that has a key."""
    group = benchmark.group
    groups = [None] * len(rows)
    if group in rows.columns and len(set(map(str, cells := rows.table[group].to_pylist()))) > 1:
        groups = cells
    read_key = key_cell if benchmark.copies_from is None else whole_number_cell
    for row, cell in enumerate(rows.table[column].to_pylist()):
        place = rows.places[row]
        try:
            name = read_key(cell, place.at(column))
            if groups[row] is not None:
                name = f"{key_cell(groups[row], place.at(str(group)))}/{name}"
        except BadRow as error:
            bad.refuse(error)
            continue
        yield row, place, name


def _content(rows: Rows, row: int, options: Sequence[str]) -> bytes:
    """What tells a row apart where no column does: its question, options and image."""
    image = rows.cell(row, "image")
    data = image.get("bytes") if isinstance(image, dict) else image
    text = repr([rows.cell(row, name) for name in ("question", "hint", *options)])
    return text.encode(errors="backslashreplace") + (
        data if isinstance(data, bytes) else repr(data).encode()
    )


def _load(
    rows: Rows,
    row: int,
    *,
    template: str,
    options: Sequence[str],
    row_of: Mapping[str, tuple[int, Place]],
    text_only: bool,
) -> Content:
    place = rows.places[row]
    question = text_cell(rows.cell(row, "question"), place.at("question"))
    cells = {
        "question": question,
        "hint": _text(rows, row, "hint"),
        "options": lettered(_options(rows, row, options)),
    }
    return Content(fill_template(template, cells), _images(rows, row, row_of, text_only))


def _options(rows: Rows, row: int, columns: Sequence[str]) -> list[tuple[str, Any]]:
    if len(columns) == 1 and not isinstance(cell := rows.cell(row, columns[0]), str):
        place = rows.places[row].at(columns[0])
        if not isinstance(cell, list) or not cell:
            raise BadRow(place, "expected a list of options", "fill the cell or remove its row")
        return letters([text_cell(option, place) for option in cell])
    # choice_A or A: the last character is the letter, also where an option before it is absent.
    return [(name[-1], _text(rows, row, name)) for name in columns]


def _text(rows: Rows, row: int, column: str) -> str | None:
    """A cell that may be empty, a number as text."""
    cell = rows.cell(row, column)
    if not is_present(cell):
        return None
    return text_cell(
        str(cell) if isinstance(cell, int | float) else cell, rows.places[row].at(column)
    )


def _images(
    rows: Rows, row: int, row_of: Mapping[str, tuple[int, Place]], text_only: bool
) -> tuple[Image.Image, ...]:
    """The image of a row; none where ``text_only`` says that a row may have none."""
    where = rows.places[row].at("image")
    cell = rows.cell(row, "image")
    if text_only and not is_present(cell):
        return ()
    if isinstance(cell, str) and row_of and 0 < len(cell) <= _MAX_REFERENCE:
        if cell not in row_of:
            raise BadRow(
                where,
                f"expected base64 or the index of another row, received {cell!a}",
                "add the row that holds the image",
            )
        cell = rows.cell(row_of[cell][0], "image")
    if isinstance(cell, str):
        cell = {"bytes": decode_base64(cell, where)}
    return (decode_image_cell(cell, where),)
