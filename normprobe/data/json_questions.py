"""JSON lines of questions: prompts of one's own, or POPE's official files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normprobe.data import pope_lines, prompts
from normprobe.data.bad_rows import BadRow, BadRows, Place
from normprobe.data.cells import require_columns
from normprobe.data.formats import read_json_lines
from normprobe.data.keys import content_keys, key_cell, unique
from normprobe.data.question import Source
from normprobe.errors import NormprobeError


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
