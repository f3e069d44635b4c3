"""Published benchmarks to questions: tables, from the hub or a file, and official JSON files."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normprobe.data.benchmarks import BENCHMARKS, Benchmark, JsonFile
from normprobe.data.formats import WRITE_LINES, Rows
from normprobe.data.images import decode_base64, decode_image_cell, read_image_file
from normprobe.data.question import QuestionSource, Recipe, fill_template, json_content, lettered
from normprobe.data.rows import (
    BadRow,
    BadRows,
    Row,
    is_present,
    key_cell,
    require_columns,
    text_cell,
    whole_number_cell,
)
from normprobe.data.sample import Answer
from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    from PIL import Image

# Up to this length an image cell is the index of the row that holds the image; no encoded image
# is that short.
_MAX_REFERENCE = 64


def read_question_table(
    benchmark: Benchmark, rows: Rows, label: str, where: dict[str, Any], bad: BadRows
) -> QuestionSource:
    """Read a table with the columns ``question`` and ``image``.

    An image is a struct of bytes and path, as the hub stores it, or text, as TSVs do: base64, or
    the ``index`` of the row that holds it.
    """
    require_columns(rows.columns, benchmark.required, rows.source)
    key = next((name for name in (benchmark.key, "index") if name in rows.columns), None)
    own = [name for name in benchmark.options if name in rows.columns]
    options = own or [name for name in string.ascii_uppercase if name in rows.columns]
    used = [name for name in (key, benchmark.group, "hint", *options) if name in rows.columns]
    require_columns(rows.columns, ["question", "image", *map(str, used)], rows.source)
    template = benchmark.wording(rows.columns)
    recipe = Recipe(
        benchmark.name,
        template,
        key=_key_of(benchmark, rows, key, options),
        prompt=partial(_table_prompt, template, options),
        images=partial(_table_images, by_index=key == "index", text_only=benchmark.text_only),
        answer=partial(_answer, options),
        key_column=key or "question",
    )
    source = recipe.source(rows, label, where, bad)
    end = benchmark.copies_from  # the copies have keys: an image cell may name any row
    if end is None:
        return source
    return replace(source, questions=[q for q in source.questions if int(q.key) < end])


def _key_of(
    benchmark: Benchmark, rows: Rows, column: str | None, options: Sequence[str]
) -> Callable[[Row], str | bytes]:
    if column is None:
        return partial(_table_content, options)
    group = benchmark.group
    groups = rows.table[group].to_pylist() if group in rows.columns else []
    several = len(set(map(str, groups))) > 1
    read_key = key_cell if benchmark.copies_from is None else whole_number_cell

    def key(row: Row) -> str:
        name = read_key(row.cells[column], row.place.at(column))
        if group is None or not several or row.cells[group] is None:
            return name
        return f"{row.key(group)}/{name}"

    return key


def _table_content(options: Sequence[str], row: Row) -> bytes:
    """What tells a row apart where no column does: its question, options and image."""
    image = row.cells["image"]
    data = image.get("bytes") if isinstance(image, dict) else image
    text = repr([row.cells.get(name) for name in ("question", "hint", *options)])
    return text.encode(errors="backslashreplace") + (
        data if isinstance(data, bytes) else repr(data).encode()
    )


def _table_prompt(template: str, options: Sequence[str], row: Row) -> str:
    cells = {
        "question": _question(row, "question"),
        "hint": _optional_text(row, "hint"),
        "options": lettered(_options(row, options)),
    }
    return fill_template(template, cells)


def _question(row: Row, column: str) -> str:
    """What is asked. Of an empty cell, which may say "nan", the prompt would lack it."""
    text = row.text(column)
    if not is_present(text):
        where = row.place.at(column)
        raise BadRow(where, f"expected text, received {text}", "fill the cell or remove its row")
    return text


def _options(row: Row, columns: Sequence[str]) -> list[tuple[str, Any]]:
    """Letters and options; a letter stays where an option before it is absent."""
    if len(columns) == 1 and not isinstance(cell := row.cells[columns[0]], str):
        place = row.place.at(columns[0])
        if not isinstance(cell, list) or not cell:
            raise BadRow(place, "expected a list of options", "fill the cell or remove its row")
        texts = [text_cell(option, place) for option in cell]
        return list(zip(string.ascii_uppercase, texts, strict=False))
    # choice_A or A: the last character is the letter.
    return [(name[-1], _optional_text(row, name)) for name in columns]


def _answer(columns: Sequence[str], row: Row) -> Answer | None:
    """The right answer as the prompt asks for it: a letter where there are options.

    Published files hold the letter, the number of the option from 0, the word, or a list of words.
    Hidden answers of test splits are empty.
    """
    cell = row.cells.get("answer", row.cells.get("label"))
    cell = cell[0] if isinstance(cell, list) and cell else cell
    if not is_present(cell):
        return None
    text = str(cell).strip()
    held = [name for name in columns if name in row.cells]
    options = _options(row, held)
    letters = tuple(letter for letter, option in options if is_present(option))
    if letters and text.isdecimal() and len(text) < 3 and int(text) < len(options):
        text = options[int(text)][0]
    if not letters:  # the options stand in the question
        known = (("yes", "no"), tuple("ABCD"))
        letters = next((each for each in known if text in each or text.lower() in each), ())
        text = text.lower() if text.lower() in letters else text
    return Answer(text, letters if text in letters else ())


def _optional_text(row: Row, column: str) -> str | None:
    """A cell that may be empty, a number as text."""
    cell = row.cells.get(column)
    if not is_present(cell):
        return None
    return text_cell(str(cell) if isinstance(cell, int | float) else cell, row.place.at(column))


def _table_images(
    row: Row, rows: Mapping[str, Row], *, by_index: bool, text_only: bool
) -> tuple[Image.Image, ...]:
    where = row.place.at("image")
    cell = row.cells["image"]
    if text_only and not is_present(cell):
        return ()
    if isinstance(cell, str) and by_index and 0 < len(cell) <= _MAX_REFERENCE:
        if cell not in rows:
            raise BadRow(
                where,
                f"expected base64 or the index of another row, received {cell!a}",
                "add the row that holds the image",
            )
        cell = rows[cell].cells["image"]
    if isinstance(cell, str):
        cell = {"bytes": decode_base64(cell, where)}
    return (decode_image_cell(cell, where),)


def official_files(*, lines: bool) -> list[tuple[Benchmark, JsonFile]]:
    """The benchmarks that are published as JSON lines, or as one JSON list."""
    files = [(entry, entry.json_file) for entry in BENCHMARKS.values()]
    return [(entry, file) for entry, file in files if file is not None and file.lines == lines]


def are_official(names: Iterable[str], *, lines: bool) -> bool:
    """Whether an official file may have these names."""
    held = _upper_letters(dict.fromkeys(names)).keys()
    return any(held >= set(form.columns) for _, form in official_files(lines=lines))


def read_json_list(
    path: Path, entries: Sequence[Row], where: dict[str, Any], bad: BadRows
) -> QuestionSource:
    """Read an official file that is one JSON list: of the benchmark that has its names."""
    entries = [Row(place, _upper_letters(cells)) for place, cells in entries]
    known = official_files(lines=False)
    for benchmark, form in known:
        if any(entry.cells.keys() >= set(form.columns) for entry in entries):
            return read_official(benchmark, form, path, entries, where, bad)
    names = ", ".join(benchmark.name for benchmark, _ in known)
    raise NormprobeError(
        f"{path}: one JSON list, but not the official file of {names}", WRITE_LINES
    )


def _upper_letters(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Cells by name, the letter of an option in upper case: both spellings are published."""
    return {
        name[:-1] + name[-1].upper() if name.startswith("choice_") else name: value
        for name, value in cells.items()
    }


def read_official(
    benchmark: Benchmark,
    form: JsonFile,
    path: Path,
    rows: Sequence[Row],
    where: dict[str, Any],
    bad: BadRows,
) -> QuestionSource:
    """Read the rows of an official JSON file, whose pictures lie beside it."""
    folder = path.parent / form.folder
    recipe = Recipe(
        benchmark.name,
        benchmark.template,
        key=lambda row: row.key(form.key) if form.key else json_content(row),
        prompt=partial(_json_prompt, benchmark, form),
        images=lambda row, rows: (
            read_image_file(row.text(form.image), folder, row.place.at(form.image)),
        ),
        answer=partial(_answer, benchmark.options),
        columns=form.columns,
        key_column=form.key or "question",
    )
    source = recipe.source(rows, path.name, where, bad)
    if not folder.is_dir():
        raise NormprobeError(
            f"{path}: expected the pictures in {folder}, which is no folder",
            "put the pictures, or a link to their folder, there",
        )
    return source


def _json_prompt(benchmark: Benchmark, form: JsonFile, row: Row) -> str:
    cells = {
        "question": _question(row, form.question),
        "options": lettered((name[-1], row.cells[name]) for name in benchmark.options),
    }
    return fill_template(benchmark.template, cells)
