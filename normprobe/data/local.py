"""Local copies: a folder of images, or which benchmark a file or folder holds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from normprobe.data.benchmarks import BENCHMARKS, Benchmark
from normprobe.data.formats import (
    Rows,
    is_saved_folder,
    json_entries,
    read_json,
    read_parquet,
    read_saved_folder,
    read_tsv,
)
from normprobe.data.images import read_image
from normprobe.data.json_benchmark import read_json_benchmark
from normprobe.data.prompts import WRITE_LINES, read_json_questions, read_text
from normprobe.data.question import Content, Question, Source, read_benchmark
from normprobe.data.referring import INSTANCES, is_referring, read_referring
from normprobe.data.rows import BadRows, Place, require_columns
from normprobe.data.sample import marks_fault
from normprobe.errors import NormprobeError

IMAGES = "images"
PROMPT = "Describe the image."


"""The prompt of every image where none is given; neutral, for it has to fit each of them."""


SUFFIXES = {
    *(".png", ".jpg", ".jpeg", ".jp2", ".webp", ".avif"),
    *(".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"),
}


def read_image_folder(folder: Path, prompt: str | None = None) -> Source | None:
    """The images of a folder and the folders below it, sorted by name; None if there are none."""
    prompt = PROMPT if prompt is None else prompt
    if fault := marks_fault(prompt, 1):
        raise NormprobeError(f"--prompt: {fault}", "mark the image once, or leave the mark out")
    names = sorted(
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and not path.is_dir()
    )
    questions = []
    for name in names:
        # A file name may hold bytes that are not valid UTF-8.
        key = str(name.as_posix()).encode(errors="backslashreplace").decode()
        place = Place(str(folder / key))
        questions.append(Question(IMAGES, key, partial(_load, prompt, str(name), folder, place)))
    where = {"path": str(folder.resolve())}
    return Source(IMAGES, prompt, folder.name, where, questions) if questions else None


def _load(prompt: str, name: str, folder: Path, place: Place) -> Content:
    return Content(prompt, (read_image(name, folder, place),))


_FORMATS = ".tsv, .jsonl, .json, .parquet or .txt"
_TABLES = (".tsv", ".parquet")
_JSON = (".jsonl", ".json")
_SHARD = re.compile(r"-\d{5}-of-\d{5}(-[0-9a-f]+)?$")


def read_file(path: Path, bad: BadRows) -> Source:
    """Read a data file."""
    return _read_local([path], bad)


def read_folder(folder: Path, bad: BadRows, prompt: str | None = None) -> list[Source]:
    """Read the data files of a folder, a saved data set, or a folder of images."""
    if is_saved_folder(folder):
        return [
            _read_rows(rows, name or folder.name, {"path": str((folder / name).resolve())}, bad)
            for name, rows in read_saved_folder(folder)
        ]
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in (*_TABLES, *_JSON))
    if len(files) > 1:  # it belongs to another, which is read with it
        files = [path for path in files if path.name != INSTANCES]
    if files:
        return [_read_local(list(paths), bad) for _, paths in groupby(files, key=_table_name)]
    images = read_image_folder(folder, prompt)
    if images is None:
        raise NormprobeError(
            f"{folder}: no data file found; expected {_FORMATS}, or images",
            "point --data at the folder that holds the data files themselves",
        )
    return [images]


def _table_name(path: Path) -> str:
    """One name for the shards of a parquet table, as the hub stores them."""
    is_parquet = path.suffix.lower() == ".parquet"
    return _SHARD.sub("", path.stem) + path.suffix if is_parquet else path.name


def _read_local(paths: Sequence[Path], bad: BadRows) -> Source:
    path = paths[0]
    suffix = path.suffix.lower()
    if suffix == ".txt":
        return read_text(path)
    where = {"path": str(path.resolve())} | ({"shards": len(paths)} if len(paths) > 1 else {})
    if suffix in _JSON:
        whole = read_json(path)
        if is_referring(whole):
            return read_referring(path, whole, where, bad)
        entries = json_entries(path, whole)
        if entries is not None:
            return read_json_benchmark(path, entries, where, bad)
        return read_json_questions(path, where, bad)
    if suffix not in _TABLES:
        if suffix in SUFFIXES:
            raise NormprobeError(
                f"{path}: expected a data file, received one picture",
                f"pass its folder, and --prompt if you like; or {WRITE_LINES}",
            )
        raise NormprobeError(f"{path}: expected {_FORMATS}", WRITE_LINES)
    rows = read_tsv(path, bad) if suffix == ".tsv" else read_parquet(paths)
    return _read_rows(rows, path.name, where, bad)


def _read_rows(rows: Rows, name: str, where: dict[str, Any], bad: BadRows) -> Source:
    benchmark = _benchmark_of(rows, name)
    questions = read_benchmark(benchmark, rows, bad)
    return Source(benchmark.name, benchmark.wording(rows.columns), name, where, questions)


def _benchmark_of(rows: Rows, name: str) -> Benchmark:
    """The benchmark that a table holds, by its name or by its columns.

    TSVs of different benchmarks have the same columns, but their published names begin with that
    of the benchmark (SEEDBench2_Plus.tsv, AI2D_TEST.tsv). The hub's tables differ in their
    columns; of several benchmarks that fit, the one with the most columns is meant.
    """
    plain = re.sub(r"[^a-z0-9]", "", Path(name).stem.lower())
    named = {
        match.end(): benchmark
        for benchmark in BENCHMARKS.values()
        if (match := re.match(benchmark.file_names or benchmark.name, plain))
    }
    if named:
        return named[max(named)]  # MMBench's files and those of its Chinese part begin alike
    received = set(rows.columns)
    told_by_columns = [b for b in BENCHMARKS.values() if b.file_names is None]
    fitting = [b for b in told_by_columns if received.issuperset(b.columns)]
    if not fitting:
        nearest = min(told_by_columns, key=lambda b: len(set(b.columns) - received))
        require_columns(rows.columns, nearest.columns, rows.source)
    return max(fitting, key=lambda benchmark: len(benchmark.columns))
