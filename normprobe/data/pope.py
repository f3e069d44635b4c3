"""POPE: is this object in the picture? Six yes-or-no questions a picture.

The official files are JSON lines (named .json) that name COCO pictures; normprobe looks for those
in a folder ``images`` beside the file. The default subset is the adversarial third, whose absent
objects are those that most often appear together with the present ones.
https://github.com/AoiDragon/POPE
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normprobe.data.bad_rows import BadRows, Place
from normprobe.data.benchmark import Benchmark, Question, fill_template, moved
from normprobe.data.images import read_image
from normprobe.data.question_table import read_question_table
from normprobe.data.tables import Rows, text_cell
from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    from PIL import Image

#: The wording of lmms-eval.
TEMPLATE = "{question}\nAnswer the question using a single word or phrase."

#: Columns of the official JSON lines.
LINE_COLUMNS = ("question_id", "image", "text")


def read_lines(path: Path, lines: Sequence[tuple[str, Place, dict[str, Any]]]) -> list[Question]:
    """Questions of the official JSON lines.

    Args:
        path: the file.
        lines: key, place and object of each line.

    Raises:
        NormprobeError: there is no folder of pictures.
    """
    folder = path.parent / "images"
    if not folder.is_dir():
        raise NormprobeError(
            f"{path}: expected the pictures in {folder}, which is no folder.",
            "Put the pictures, or a link to their folder, there.",
        )
    return [Question("pope", key, partial(_load, row, folder, place)) for key, place, row in lines]


def _load(row: dict[str, Any], folder: Path, place: Place) -> tuple[str, Image.Image]:
    question = text_cell(row["text"], place.at("text"))
    where = place.at("image")
    image = read_image(text_cell(row["image"], where), folder, where)
    return fill_template(TEMPLATE, {"question": question}), image


def _read(rows: Rows, bad: BadRows) -> list[Question]:
    # A table of all three thirds numbers each from 1.
    return read_question_table(
        "pope", rows, bad, template=TEMPLATE, key="question_id", group="category"
    )


POPE = Benchmark(
    name="pope",
    template=TEMPLATE,
    subsets={
        **{third: moved("POPE", "Full", third) for third in ("adversarial", "popular", "random")},
        "all": moved("POPE", "default", "test"),
    },
    columns=("question_id", "question", "image"),
    read=_read,
)
