"""Tables with a question, an image and perhaps options in every row: what the hub and TSVs hold."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from normprobe.data.bad_rows import BadRow, BadRows, Place
from normprobe.data.benchmark import Question, fill_template, is_present, lettered, letters
from normprobe.data.images import decode_base64, decode_image_cell
from normprobe.data.keys import content_keys, key_cell, unique
from normprobe.data.tables import Rows, require_columns, text_cell

if TYPE_CHECKING:
    from PIL import Image

# Up to this length an image cell is the index of the row that holds the image; no encoded image
# is that short.
_MAX_REFERENCE = 64


def read_question_table(
    benchmark: str,
    rows: Rows,
    bad: BadRows,
    *,
    template: str,
    key: str | None,
    group: str | None = None,
    options: Sequence[str] = (),
    text_only: bool = False,
    parse_key: Callable[[Any, Place], str] = key_cell,
) -> list[Question]:
    """Read a table with the columns ``question`` and ``image``.

    An image is a struct of bytes and path, as the hub stores it, or text, as TSVs do: base64, or
    the ``index`` of the row that holds it.

    Args:
        benchmark: name of the benchmark.
        rows: the table.
        bad: takes rows without a key of their own.
        template: prompt over ``{question}``, ``{hint}`` and ``{options}``.
        key: the column that identifies a row. Where the table has none, ``index`` does, which TSVs
            have; where it has neither, a hash of the row's content.
        group: column that is put before the key where a table holds several groups.
        options: the column that holds a list of options, or one column for each. Otherwise the
            columns A, B, ... that are there.
        text_only: an absent image is no fault.
        parse_key: reads a cell of the key column, or raises ``BadRow``.

    Raises:
        NormprobeError: a column is missing or there twice.
    """
    names = [name for name in (key, "index") if name in rows.columns]
    identifier = names[0] if names else None
    present = [name for name in options if name in rows.columns]
    columns = present or [name for name in string.ascii_uppercase if name in rows.columns]
    used = [name for name in (identifier, group, "hint", *columns) if name in rows.columns]
    require_columns(rows.columns, ["question", "image", *map(str, used)], rows.source)
    keyed: Iterable[tuple[int, Place, str]]
    if identifier is None:
        keys = content_keys(_content(rows, row, columns) for row in range(len(rows)))
        keyed = zip(range(len(rows)), rows.places, keys, strict=True)
    else:
        keyed = _column_keys(rows, identifier, group, parse_key, bad)
    row_of = unique(keyed, identifier or "question", bad)
    load = partial(
        _load,
        rows,
        template=template,
        options=columns,
        row_of=row_of if identifier == "index" else {},
        text_only=text_only,
    )
    return [Question(benchmark, name, partial(load, row)) for name, (row, _) in row_of.items()]


def _column_keys(
    rows: Rows,
    column: str,
    group: str | None,
    parse_key: Callable[[Any, Place], str],
    bad: BadRows,
) -> Iterator[tuple[int, Place, str]]:
    groups = [None] * len(rows)
    if group in rows.columns and len(set(map(str, cells := rows.table[group].to_pylist()))) > 1:
        groups = cells
    for row, cell in enumerate(rows.table[column].to_pylist()):
        place = rows.places[row]
        try:
            name = parse_key(cell, place.at(column))
            if groups[row] is not None:
                name = f"{key_cell(groups[row], place.at(str(group)))}/{name}"
        except BadRow as error:
            bad.refuse(error)
            continue
        yield row, place, name


def _content(rows: Rows, row: int, options: Sequence[str]) -> bytes:
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
) -> tuple[str, Image.Image | None]:
    place = rows.places[row]
    question = text_cell(rows.cell(row, "question"), place.at("question"))
    cells = {
        "question": question,
        "hint": _text(rows, row, "hint"),
        "options": lettered(_options(rows, row, options)),
    }
    return fill_template(template, cells), _image(rows, row, row_of, text_only)


def _options(rows: Rows, row: int, columns: Sequence[str]) -> list[tuple[str, Any]]:
    if len(columns) == 1 and not isinstance(cell := rows.cell(row, columns[0]), str):
        place = rows.places[row].at(columns[0])
        if not isinstance(cell, list) or not cell:
            raise BadRow(place, "expected a list of options.", "Fill the cell or remove its row.")
        return letters([text_cell(option, place) for option in cell])
    # choice_A or A: the letter is the last one, and keeps its option where another is absent.
    return [(name[-1], _text(rows, row, name)) for name in columns]


def _text(rows: Rows, row: int, column: str) -> str | None:
    """A cell that may be empty; numbers are text of their own."""
    cell = rows.cell(row, column)
    if not is_present(cell):
        return None
    return text_cell(
        str(cell) if isinstance(cell, int | float) else cell, rows.places[row].at(column)
    )


def _image(
    rows: Rows, row: int, row_of: Mapping[str, tuple[int, Place]], text_only: bool
) -> Image.Image | None:
    where = rows.places[row].at("image")
    cell = rows.cell(row, "image")
    if text_only and not is_present(cell):
        return None
    if isinstance(cell, str) and row_of and 0 < len(cell) <= _MAX_REFERENCE:
        if cell not in row_of:
            raise BadRow(
                where,
                f"expected base64 or the index of another row, received {cell!a}.",
                "Add the row that holds the image.",
            )
        cell = rows.cell(row_of[cell][0], "image")
    if isinstance(cell, str):
        cell = {"bytes": decode_base64(cell, where)}
    return decode_image_cell(cell, where)
