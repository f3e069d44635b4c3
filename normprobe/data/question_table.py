"""Tables with a question, an image and perhaps options in every row: the hub's, and TSVs."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from normprobe.data.bad_rows import BadRow, BadRows, Place
from normprobe.data.benchmarks import Benchmark
from normprobe.data.cells import is_present, require_columns, text_cell
from normprobe.data.formats import Rows
from normprobe.data.images import decode_base64, decode_image_cell
from normprobe.data.keys import content_keys, key_cell, unique, whole_number_cell
from normprobe.data.question import Content, Question
from normprobe.data.wording import fill_template, lettered, letters

if TYPE_CHECKING:
    from PIL import Image

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
