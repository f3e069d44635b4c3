"""POPE: is this object in the picture? Six yes-or-no questions a picture.

The official files are JSON lines (named .json) that name COCO pictures; normprobe looks for those
in a folder ``images`` beside the file. From the hub: the adversarial third, whose absent objects
are those that most often appear together with the present ones.
https://github.com/AoiDragon/POPE
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normprobe.data.benchmark import Benchmark, HubSource, Question, fill_template
from normprobe.data.images import read_image
from normprobe.data.question_table import read_question_table
from normprobe.data.tables import read_json_lines, require_unique, text_cell
from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL import Image

#: The wording of lmms-eval.
TEMPLATE = "{question}\nAnswer the question using a single word or phrase."


def _read_file(path: Path) -> list[Question]:
    rows = read_json_lines(path, ("question_id", "image", "text"))
    require_unique(((where, str(row["question_id"])) for where, row in rows), "question_id")
    folder = path.parent / "images"
    if not folder.is_dir():
        raise NormprobeError(
            f"{path}: expected the pictures in {folder}, which is no folder.",
            "Put the pictures, or a link to their folder, there.",
        )
    return [
        Question("pope", str(row["question_id"]), partial(_load_line, row, folder, where))
        for where, row in rows
    ]


def _load_line(row: dict[str, Any], folder: Path, where: str) -> tuple[str, Image.Image]:
    question = text_cell(row["text"], f"{where}, column text")
    where = f"{where}, column image"
    image = read_image(text_cell(row["image"], where), folder, where)
    return fill_template(TEMPLATE, {"question": question}), image


def _read_table(table: pa.Table, source: str) -> list[Question]:
    return read_question_table("pope", table, source, key="question_id", template=TEMPLATE)


POPE = Benchmark(
    name="pope",
    template=TEMPLATE,
    suffixes=(".jsonl", ".json"),
    hub=HubSource(("lmms-lab-encoder/POPE", "lmms-lab/POPE"), config="Full", split="adversarial"),
    read_file=_read_file,
    read_table=_read_table,
)
