"""Prompts of one's own: a text file of one prompt a line, or JSON lines of image and prompt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normprobe.data.bad_rows import Place
from normprobe.data.cells import text_cell
from normprobe.data.formats import read_lines
from normprobe.data.images import read_image
from normprobe.data.keys import content_keys
from normprobe.data.question import Question, Source

if TYPE_CHECKING:
    from PIL import Image

TEXT, PROMPTS = "text", "prompts"
TEMPLATE = "{prompt}"
BUNDLED_PROMPTS = Path(__file__).with_name("prompts.txt")


def read_text(path: Path) -> Source:
    """Read prompts without images, one a line; blank lines are skipped.

    Raises:
        NormprobeError: unreadable, not UTF-8, or no lines.
    """
    lines = read_lines(path)
    keys = content_keys(text.encode() for _, text in lines)
    questions = [
        Question(TEXT, key, partial(_load_text, text, place), has_image=False)
        for key, (place, text) in zip(keys, lines, strict=True)
    ]
    return Source(TEXT, TEMPLATE, path.name, {"path": str(path.resolve())}, questions)


def read_prompt_lines(
    path: Path, lines: Sequence[tuple[str, Place, dict[str, Any]]]
) -> list[Question]:
    """Questions of JSON lines with ``prompt`` and ``image``.

    Args:
        path: the file. ``image`` names a file in its folder or below; absent, null or empty: the
            prompt is text alone.
        lines: key, place and object of each line.
    """
    return [
        Question(PROMPTS, key, partial(_load_line, row, path.parent, place), bool(row.get("image")))
        for key, place, row in lines
    ]


def _load_text(text: str, place: Place) -> tuple[str, None]:
    return text_cell(text, place), None


def _load_line(row: dict[str, Any], folder: Path, place: Place) -> tuple[str, Image.Image | None]:
    prompt = text_cell(row["prompt"], place.at("prompt"))
    if row.get("image") in (None, ""):
        return prompt, None
    where = place.at("image")
    return prompt, read_image(text_cell(row["image"], where), folder, where)
