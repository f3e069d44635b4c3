"""POPE's official files: JSON lines (named .json) that name COCO pictures.

The pictures are looked for in a folder ``images`` beside the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from normprobe.data.benchmarks import BENCHMARKS
from normprobe.data.images import read_image
from normprobe.data.question import Content, Question, fill_template
from normprobe.data.rows import Place, text_cell
from normprobe.errors import NormprobeError

POPE = "pope"
TEMPLATE = BENCHMARKS[POPE].template
COLUMNS = ("question_id", "image", "text")
"""What every line has to hold."""


def read_pope_lines(
    path: Path, lines: Sequence[tuple[str, Place, dict[str, Any]]]
) -> list[Question]:
    """Questions of the official JSON lines."""
    folder = path.parent / "images"
    if not folder.is_dir():
        raise NormprobeError(
            f"{path}: expected the pictures in {folder}, which is no folder",
            "put the pictures, or a link to their folder, there",
        )
    return [Question(POPE, key, partial(_load, row, folder, place)) for key, place, row in lines]


def _load(row: dict[str, Any], folder: Path, place: Place) -> Content:
    question = text_cell(row["text"], place.at("text"))
    where = place.at("image")
    image = read_image(text_cell(row["image"], where), folder, where)
    return Content(fill_template(TEMPLATE, {"question": question}), (image,))
