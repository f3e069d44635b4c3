"""Tables with a key, a question and an image in every row: the plainest of the hub's formats."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from normprobe.data.benchmark import Question, fill_template
from normprobe.data.images import decode_image_cell
from normprobe.data.tables import require_columns, require_unique, row_place, text_cell

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL import Image


def read_question_table(
    benchmark: str, table: pa.Table, source: str, *, key: str, template: str
) -> list[Question]:
    """Read a table with the columns ``key``, ``question`` and ``image``.

    Args:
        benchmark: name of the benchmark.
        table: ``image`` is a struct of bytes and path, as the hub stores images.
        source: name of the table, for errors.
        key: the column that identifies a row.
        template: prompt with the field ``{question}``.

    Raises:
        NormprobeError: a column is missing or a key repeats.
    """
    require_columns(table.column_names, (key, "question", "image"), source)
    keys = [str(cell) for cell in table[key].to_pylist()]
    places = [row_place(source, row) for row in range(len(keys))]
    require_unique(zip(places, keys, strict=True), key)
    return [
        Question(benchmark, keys[row], partial(_load, table, row, template, places[row]))
        for row in range(len(keys))
    ]


def _load(table: pa.Table, row: int, template: str, where: str) -> tuple[str, Image.Image]:
    question = text_cell(table["question"][row].as_py(), f"{where}, column question")
    image = decode_image_cell(table["image"][row].as_py(), f"{where}, column image")
    return fill_template(template, {"question": question}), image
