"""Prompts of one's own: a text file of one prompt a line, or JSON lines of images and prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from normprobe.data import pope_lines, prompts
from normprobe.data.formats import read_json_lines, read_lines
from normprobe.data.images import read_image
from normprobe.data.question import Content, Question, Source
from normprobe.data.referring import read_referent
from normprobe.data.rows import (
    BadRow,
    BadRows,
    Place,
    content_keys,
    key_cell,
    quoted,
    require_columns,
    text_cell,
    unique,
)
from normprobe.data.sample import marks_fault
from normprobe.errors import NormprobeError

TEXT, PROMPTS = "text", "prompts"
TEMPLATE = "{prompt}"
WRITE_LINES = 'write FILE.jsonl, a line each: {"image": "cat.jpg", "prompt": "What is it?"}'
BUNDLED_PROMPTS = Path(__file__).with_name("prompts.txt")


def read_text(path: Path) -> Source:
    """Read prompts without images, one a line; blank lines are skipped."""
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
    """Questions of JSON lines with ``prompt`` and ``image``, or a list ``images``."""
    return [
        Question(PROMPTS, key, partial(_load_line, row, path.parent, place), _has_image(row))
        for key, place, row in lines
    ]


def _has_image(row: dict[str, Any]) -> bool:
    return any(row.get(name) for name in ("image", "images"))


def _load_text(text: str, place: Place) -> Content:
    return Content(text_cell(text, place))


def _load_line(row: dict[str, Any], folder: Path, place: Place) -> Content:
    prompt = text_cell(row["prompt"], place.at("prompt"))
    where, names = _image_names(row, place)
    if fault := marks_fault(prompt, len(names)):
        raise BadRow(place.at("prompt"), fault, "mark each image in the prompt, or none of them")
    images = tuple(read_image(text_cell(name, where), folder, where) for name in names)
    return Content(prompt, images, read_referent(row, prompt, images, place))


def _image_names(row: dict[str, Any], place: Place) -> tuple[Place, list[Any]]:
    """The cell that names the images of a row, and the names."""
    one, several = row.get("image"), row.get("images")
    where = place.at("images")
    if several is None:
        return place.at("image"), [] if one in (None, "") else [one]
    if one not in (None, "") or not isinstance(several, list):
        received = "image as well" if isinstance(several, list) else quoted(several)
        raise BadRow(
            where,
            f"expected a list of image files and no other image, received {received}",
            "write either one image or a list of images",
        )
    return where, several


def read_json_questions(path: Path, where: dict[str, Any], bad: BadRows) -> Source:
    """Read the questions of a JSON lines file; one with ``prompt`` in any line holds prompts."""
    lines = read_json_lines(path, bad)
    is_prompts = any("prompt" in row for _, row in lines)
    columns = ("prompt",) if is_prompts else pope_lines.COLUMNS
    if not any(set(columns) & row.keys() for _, row in lines):
        require_columns(list(lines[0][1]) if lines else (), ["prompt", "image"], path)
    complete = []
    for place, row in lines:
        try:
            require_columns(list(row), columns, place)
        except NormprobeError as error:
            fault = error.problem.removeprefix(f"{place}: ")
            bad.refuse(BadRow(place, fault, error.remedy))
        else:
            complete.append((place, row))
    if is_prompts:
        questions = prompts.read_prompt_lines(path, _with_keys(complete, "id", bad))
        return Source(prompts.PROMPTS, prompts.TEMPLATE, path.name, where, questions)
    questions = pope_lines.read_pope_lines(path, _with_keys(complete, "question_id", bad))
    return Source(pope_lines.POPE, pope_lines.TEMPLATE, path.name, where, questions)


def _with_keys(
    lines: Sequence[tuple[Place, dict[str, Any]]], column: str, bad: BadRows
) -> list[tuple[str, Place, dict[str, Any]]]:
    """Lines with their keys, of a column or, where it is absent, of their content."""
    contents = content_keys(json.dumps(row, sort_keys=True).encode() for _, row in lines)
    keyed = []
    for number, (place, row) in enumerate(lines):
        try:
            key = key_cell(row[column], place.at(column)) if column in row else contents[number]
        except BadRow as error:
            bad.refuse(error)
        else:
            keyed.append((number, place, key))
    rows = unique(keyed, column, bad)
    return [(key, place, lines[number][1]) for key, (number, place) in rows.items()]
