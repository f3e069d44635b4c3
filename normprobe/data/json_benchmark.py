"""Benchmarks whose official form is one JSON file that names its pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from normprobe.data.benchmarks import BENCHMARKS, Benchmark, JsonFile
from normprobe.data.images import read_image
from normprobe.data.prompts import WRITE_LINES
from normprobe.data.question import Content, Question, Source, fill_template, lettered
from normprobe.data.rows import BadRow, BadRows, Place, content_keys, require_columns, text_cell
from normprobe.errors import NormprobeError


def read_json_benchmark(
    path: Path, entries: Sequence[tuple[Place, Any]], where: dict[str, Any], bad: BadRows
) -> Source:
    """Questions of an official JSON file, keyed by their content: published ids repeat."""
    benchmark, form = _form_of(entries, path)
    folder = path.parent / form.folder
    if not folder.is_dir():
        raise NormprobeError(
            f"{path}: expected the pictures in {folder}, which is no folder",
            "put the pictures, or a link to their folder, there",
        )
    complete = []
    for place, entry in entries:
        try:
            require_columns(list(_named(entry)), ("question", *form.columns), place)
        except NormprobeError as error:
            fault = error.problem.removeprefix(f"{place}: ")
            bad.refuse(BadRow(place, fault, error.remedy))
        else:
            complete.append((place, _named(entry)))
    keys = content_keys(json.dumps(entry, sort_keys=True).encode() for _, entry in complete)
    questions = [
        Question(benchmark.name, key, partial(_load, entry, place, folder, benchmark, form))
        for key, (place, entry) in zip(keys, complete, strict=True)
    ]
    return Source(benchmark.name, benchmark.template, path.name, where, questions)


def _form_of(entries: Sequence[tuple[Place, Any]], path: Path) -> tuple[Benchmark, JsonFile]:
    """The benchmark that has the names of the entries."""
    forms = [(b, b.json_file) for b in BENCHMARKS.values() if b.json_file is not None]
    names = [set(_named(entry)) for _, entry in entries]
    for benchmark, form in forms:
        if any(found.issuperset(("question", *form.columns)) for found in names):
            return benchmark, form
    known = ", ".join(benchmark.name for benchmark, _ in forms)
    raise NormprobeError(
        f"{path}: one JSON list, but not the official file of {known}",
        WRITE_LINES,
    )


def _named(entry: Any) -> dict[str, Any]:
    """An entry by name, the letter of an option in upper case: both spellings are published."""
    if not isinstance(entry, dict):
        return {}
    return {
        name[:-1] + name[-1].upper() if name.startswith("choice_") else name: value
        for name, value in entry.items()
    }


def _load(
    entry: Mapping[str, Any], place: Place, folder: Path, benchmark: Benchmark, form: JsonFile
) -> Content:
    cells = {
        "question": text_cell(entry["question"], place.at("question")),
        "options": lettered((name[-1], entry[name]) for name in benchmark.options),
    }
    where = place.at(form.image)
    image = read_image(text_cell(entry[form.image], where), folder, where)
    return Content(fill_template(benchmark.template, cells), (image,))
