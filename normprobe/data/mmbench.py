"""MMBench: one picture, one question, up to four options.

The published table repeats every question with its options rotated ("CircularEval", for scoring);
those copies carry indices from one million on and are no further questions.
https://github.com/open-compass/MMBench
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from normprobe.data.benchmark import Benchmark, HubSource, Question, fill_template
from normprobe.data.images import decode_base64, decode_image_cell
from normprobe.data.tables import (
    read_tsv,
    require_columns,
    require_unique,
    row_place,
    text_cell,
)
from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL import Image

#: The wording LLaVA-1.5 was evaluated with.
TEMPLATE = (
    "{hint}\n{question}\nA. {A}\nB. {B}\nC. {C}\nD. {D}\n"
    "Answer with the option's letter from the given choices directly."
)
COLUMNS = ("index", "question", "hint", "A", "B", "C", "D", "image")

_FIRST_COPY = 1_000_000
# Up to this length an image cell is the index of the row that holds the image; no encoded image
# is that short.
_MAX_REFERENCE = 64


def _read_file(path: Path) -> list[Question]:
    return _read_table(read_tsv(path, COLUMNS), str(path))


def _read_table(table: pa.Table, source: str) -> list[Question]:
    require_columns(table.column_names, COLUMNS, source)
    indices = [_index(cell, row_place(source, row)) for row, cell in enumerate(table["index"])]
    require_unique(((row_place(source, row), key) for row, key in enumerate(indices)), "index")
    # The copies stay in this map: an image cell may name any row.
    row_of = {index: row for row, index in enumerate(indices)}
    return [
        Question("mmbench", index, partial(_load, table, row, row_of, row_place(source, row)))
        for index, row in row_of.items()
        if int(index) < _FIRST_COPY
    ]


def _index(cell: pa.Scalar, where: str) -> str:
    try:
        return str(int(cell.as_py()))
    except (TypeError, ValueError) as error:
        raise NormprobeError(
            f"{where}, column index: expected a whole number, received {str(cell)[:40]!r}.",
            "Give every row its number; shifted columns show here first.",
        ) from error


def _load(table: pa.Table, row: int, row_of: dict[str, int], where: str) -> tuple[str, Image.Image]:
    cells = {name: table[name][row].as_py() for name in COLUMNS}
    text_cell(cells["question"], f"{where}, column question")
    where = f"{where}, column image"
    image = cells["image"]
    if isinstance(image, str) and 0 < len(image) <= _MAX_REFERENCE:
        if image not in row_of:
            raise NormprobeError(
                f"{where}: expected base64 or the index of another row, received {image!r}.",
                "Add the row that holds the image.",
            )
        image = table["image"][row_of[image]].as_py()
    if isinstance(image, str):  # the TSV; the hub's tables hold bytes
        image = {"bytes": decode_base64(image, where)}
    return fill_template(TEMPLATE, cells), decode_image_cell(image, where)


MMBENCH = Benchmark(
    name="mmbench",
    template=TEMPLATE,
    suffixes=(".tsv",),
    hub=HubSource(("lmms-lab-encoder/MMBench", "lmms-lab/MMBench"), config="en", split="dev"),
    read_file=_read_file,
    read_table=_read_table,
)
