"""Local copies: which benchmark a file or folder holds, and its questions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from normprobe.data import pope
from normprobe.data.bad_rows import BadRow, BadRows, Place
from normprobe.data.benchmark import Benchmark, Question, Source
from normprobe.data.benchmarks import BENCHMARKS
from normprobe.data.hub import rows_of
from normprobe.data.image_folder import read_image_folder
from normprobe.data.keys import content_keys, key_cell, unique
from normprobe.data.prompts import PROMPTS, read_prompt_lines, read_text
from normprobe.data.prompts import TEMPLATE as PROMPT_TEMPLATE
from normprobe.data.tables import (
    Rows,
    read_json_lines,
    read_parquet,
    read_tsv,
    require_columns,
)
from normprobe.errors import NormprobeError

FORMATS = ".tsv, .jsonl, .json, .parquet or .txt"

_TABLES = (".tsv", ".parquet")
_JSON = (".jsonl", ".json")
_SHARD = re.compile(r"-\d{5}-of-\d{5}(-[0-9a-f]+)?$")


def read_file(path: Path, bad: BadRows) -> Source:
    """Read a data file.

    Args:
        path: a file in a published format.
        bad: takes its bad rows.

    Raises:
        NormprobeError: of another format, unreadable, or a column is missing.
    """
    return _read([path], bad)


def read_folder(folder: Path, bad: BadRows) -> list[Source]:
    """Read the data files of a folder, a saved data set, or a folder of images.

    Args:
        folder: where to look. Text files are left alone: they may be notes.
        bad: takes bad rows.

    Raises:
        NormprobeError: nothing to read, or as ``read_file``.
    """
    if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
        return _read_saved(folder, bad)
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in (*_TABLES, *_JSON))
    if files:
        return [_read(list(paths), bad) for _, paths in groupby(files, key=_table_name)]
    images = read_image_folder(folder)
    if images is None:
        raise NormprobeError(
            f"{folder}: no data file found; expected {FORMATS}, or images.",
            "Point --data at the folder that holds the data files themselves.",
        )
    return [images]


def _table_name(path: Path) -> str:
    """One name for the shards of a parquet table, as the hub stores them."""
    is_parquet = path.suffix.lower() == ".parquet"
    return _SHARD.sub("", path.stem) + path.suffix if is_parquet else path.name


def _read(paths: Sequence[Path], bad: BadRows) -> Source:
    path = paths[0]
    suffix = path.suffix.lower()
    if suffix == ".txt":
        return read_text(path)
    where = {"path": str(path.resolve())} | ({"shards": len(paths)} if len(paths) > 1 else {})
    if suffix in _JSON:
        return _read_json(path, where, bad)
    if suffix not in _TABLES:
        raise NormprobeError(
            f"{path}: expected {FORMATS}.", "Convert the file, or rename it to its format."
        )
    rows = read_tsv(path, bad) if suffix == ".tsv" else read_parquet(paths)
    return _read_rows(rows, path.name, where, bad)


def _read_rows(rows: Rows, name: str, where: dict[str, Any], bad: BadRows) -> Source:
    benchmark = _benchmark_of(rows, name)
    questions = benchmark.read(rows, bad)
    return Source(benchmark.name, benchmark.wording(rows.columns), name, where, questions)


def _benchmark_of(rows: Rows, name: str) -> Benchmark:
    """The benchmark that a table holds.

    TSVs of different benchmarks have the same columns; their published names begin with that of
    the benchmark (SEEDBench2_Plus.tsv, AI2D_TEST.tsv). Tables of the hub tell by their columns.
    """
    plain = re.sub(r"[^a-z0-9]", "", Path(name).stem.lower())
    for benchmark in BENCHMARKS.values():
        if plain.startswith(benchmark.name):
            return benchmark
    received = set(rows.columns)
    fitting = [b for b in BENCHMARKS.values() if received.issuperset(b.columns)]
    if not fitting:
        nearest = min(BENCHMARKS.values(), key=lambda b: len(set(b.columns) - received))
        require_columns(rows.columns, nearest.columns, rows.source)
    return max(fitting, key=lambda benchmark: len(benchmark.columns))


def _read_json(path: Path, where: dict[str, Any], bad: BadRows) -> Source:
    lines = read_json_lines(path, bad)
    is_prompts = any("prompt" in row for _, row in lines)
    columns = ("prompt",) if is_prompts else pope.LINE_COLUMNS
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
        keyed = _with_keys(complete, "id", bad)
        return Source(PROMPTS, PROMPT_TEMPLATE, path.name, where, read_prompt_lines(path, keyed))
    keyed = _with_keys(complete, "question_id", bad)
    return Source("pope", pope.TEMPLATE, path.name, where, pope.read_lines(path, keyed))


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


def _read_saved(folder: Path, bad: BadRows) -> list[Source]:
    """A folder of ``Dataset.save_to_disk``, one source a split."""
    import datasets

    try:
        for path in _saved_files(folder):
            if not path.resolve().is_relative_to(folder.resolve()):
                raise ValueError(f"it names {str(path)!a}, outside of it")
        loaded = datasets.load_from_disk(str(folder))
        for split in loaded.values() if isinstance(loaded, dict) else [loaded]:
            split.data.validate(full=True)  # Arrow maps the file and trusts its offsets
    except Exception as error:  # whatever its JSON and arrow files can be wrong about
        raise NormprobeError(
            f"{folder}: expected a saved data set ({' '.join(str(error).split())[:200]}).",
            "Save it again with Dataset.save_to_disk.",
        ) from error
    splits = loaded if isinstance(loaded, dict) else {"": loaded}
    return [
        _read_rows(
            rows_of(split, str(folder / name)),
            name or folder.name,
            {"path": str((folder / name).resolve())},
            bad,
        )
        for name, split in splits.items()
    ]


def _saved_files(folder: Path) -> Iterator[Path]:
    """The files that the JSON of a saved data set names, each before it is looked into."""
    index = folder / "dataset_dict.json"
    splits = json.loads(index.read_text())["splits"] if index.is_file() else ["."]
    for split in splits:
        state = folder / split / "state.json"
        yield state
        for file in json.loads(state.read_text())["_data_files"]:
            yield folder / split / file["filename"]


def all_questions(sources: Sequence[Source]) -> list[Question]:
    """The questions of all sources, with keys that no two of them share."""
    names = [source.benchmark for source in sources]
    return [
        # POPE's three official files number their questions alike.
        replace(question, key=f"{source.label}/{question.key}")
        if names.count(source.benchmark) > 1
        else question
        for source in sources
        for question in source.questions
    ]
