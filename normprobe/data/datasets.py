"""``open_data``: the bundled questions, a published benchmark or local files, by name or path."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from normprobe.data.benchmark import Benchmark, Question
from normprobe.data.bundle import bundled_data_dir
from normprobe.data.draw import draw
from normprobe.data.hub import load_hub_table
from normprobe.data.images import image_hash
from normprobe.data.mmbench import MMBENCH
from normprobe.data.mmstar import MMSTAR
from normprobe.data.pope import POPE
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError

SAMPLE = "sample"
"""Name of the bundled questions, all benchmarks together."""

BENCHMARKS: dict[str, Benchmark] = {"mmbench": MMBENCH, "pope": POPE, "mmstar": MMSTAR}
"""Every benchmark that ``--data`` knows; a new one is one file and one entry here."""

# Each benchmark is published in a format of its own, so the ending of a file tells them apart.
_BENCHMARK_OF_SUFFIX = {
    suffix: benchmark for benchmark in BENCHMARKS.values() for suffix in benchmark.suffixes
}


class DataSet:
    """Questions to iterate over, as often as needed.

    Images are decoded one at a time while iterating; a bad row raises NormprobeError there.

    Attributes:
        name: short, for folder names.
        ids: sample ids in the order of iteration.
        provenance: JSON-able record of where the questions come from and how they were drawn.
    """

    def __init__(
        self, name: str, questions: Sequence[Question], provenance: dict[str, Any]
    ) -> None:
        self.name = name
        self.provenance = provenance
        self._questions = questions

    @property
    def ids(self) -> list[str]:
        """Sample ids in the order of iteration."""
        return [question.id for question in self._questions]

    def subset(self, ids: Collection[str]) -> DataSet:
        """The questions with these ids, in the order of this data set."""
        kept = set(ids)
        questions = [question for question in self._questions if question.id in kept]
        return DataSet(self.name, questions, self.provenance)

    def __len__(self) -> int:
        return len(self._questions)

    def __iter__(self) -> Iterator[Sample]:
        for question in self._questions:
            prompt, image = question.load()
            yield Sample(question.id, prompt, image, image_hash(image))


def open_data(spec: str, *, limit: int | None = None, seed: int = 42) -> DataSet:
    """Open a data set.

    Args:
        spec: ``sample``, the name of a benchmark (from the hub), or the path of a file or folder
            in a published format. Names win over paths: write ``./pope`` for a folder pope.
        limit: number of questions to draw; ``None`` takes all.
        seed: of the draw.

    Raises:
        NormprobeError: unknown, unreachable, or malformed.
    """
    if limit is not None and limit < 1:
        raise NormprobeError(
            f"--limit: expected at least 1 question, received {limit}.", "Pass --limit 1 or more."
        )
    if spec == SAMPLE:
        name, questions, sources = SAMPLE, *_read_folder(bundled_data_dir())
    elif spec in BENCHMARKS:
        name, questions, sources = spec, *_read_hub(BENCHMARKS[spec])
    elif Path(spec).is_dir():
        name, questions, sources = Path(spec).resolve().name, *_read_folder(Path(spec))
    elif Path(spec).is_file():
        name, questions, sources = Path(spec).stem, *_read_files([Path(spec)])
    else:
        raise NormprobeError(
            f"--data: expected {SAMPLE}, {', '.join(BENCHMARKS)}, or an existing file or folder; "
            f"received {spec!r}.",
            f"Check the spelling; --data {SAMPLE} needs no download.",
        )
    drawn = draw(questions, limit, seed)
    provenance = {"data": spec, "seed": seed, "limit": limit, "samples": len(drawn)}
    return DataSet(name, drawn, provenance | {"sources": sources})


_Read = tuple[list[Question], list[dict[str, Any]]]  # questions, and one provenance a source


def _read_hub(benchmark: Benchmark) -> _Read:
    table, provenance = load_hub_table(benchmark)
    questions = benchmark.read_table(table, str(provenance["hub"]))
    return questions, [_describe(benchmark, questions, provenance)]


def _read_folder(folder: Path) -> _Read:
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in _BENCHMARK_OF_SUFFIX)
    if not files:
        raise NormprobeError(
            f"{folder}: no data file found; expected {_formats()}.",
            "Point --data at the folder that holds the data files themselves.",
        )
    return _read_files(files)


def _read_files(files: Sequence[Path]) -> _Read:
    questions, sources = [], []
    for path in files:
        benchmark = _BENCHMARK_OF_SUFFIX.get(path.suffix.lower())
        if benchmark is None:
            raise NormprobeError(
                f"{path}: expected {_formats()}.", "Convert the file, or rename it to its format."
            )
        read = benchmark.read_file(path)
        sources.append(_describe(benchmark, read, {"path": str(path.resolve())}))
        if sum(other.suffix.lower() in benchmark.suffixes for other in files) > 1:
            # POPE's three official files number their questions alike.
            read = [replace(question, key=f"{path.name}/{question.key}") for question in read]
        questions += read
    return questions, sources


def _formats() -> str:
    return ", ".join(f"{'/'.join(b.suffixes)} ({b.name})" for b in BENCHMARKS.values())


def _describe(
    benchmark: Benchmark, questions: Sequence[Question], where: dict[str, Any]
) -> dict[str, Any]:
    return (
        {"benchmark": benchmark.name, "prompt": benchmark.template}
        | where
        | {"questions": len(questions)}
    )
