"""``open_data``: bundled questions, a benchmark, local files or prompts, by name or path."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from normprobe.data.benchmarks import BENCHMARKS
from normprobe.data.formats import load_hub_table
from normprobe.data.images import image_hash
from normprobe.data.local import IMAGES, TEXT, read_file, read_folder, read_text
from normprobe.data.published import read_question_table
from normprobe.data.question import Question, QuestionSource, all_questions
from normprobe.data.rows import BadRow, BadRows
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError, did_you_mean

SAMPLE = "sample"  # the bundled questions, all benchmarks together
PAIRS = "pairs"  # those about two pictures each: not every model reads two
BOXES = "boxes"  # those with a word whose referent has a box
SCENES = "scenes"  # drawn pictures like those that the specimen has learned from, with answers
TURNS = "turns"  # conversations of three turns about as many of these pictures
MIXED = "mixed"  # a picture, a clip, a sound, all three, and text alone
PAPER = "paper"
#: Subset and number of questions of each benchmark of the paper, in the order of drawing.
SHARES = {"mmbench": ("dev", 334), "pope": ("adversarial", 333), "mmstar": ("val", 333)}

_BUNDLED_PROMPTS = Path(__file__).with_name("prompts.txt")


class DataSet:
    """Questions to iterate over, as often as needed.

    Images are decoded one at a time while iterating; that is when a bad row goes to ``bad``.

    Attributes:
        name: short, for folder names.
        ids: sample ids in the order of iteration, also of rows that turn out to be bad.
        provenance: JSON-able record of where the questions come from and how they were drawn.
        bad: raises on the first bad row, or lists those that were skipped. A sample that the
            processor refuses later is added there, too.
    """

    def __init__(
        self,
        name: str,
        questions: Sequence[Question],
        provenance: dict[str, Any],
        bad: BadRows | None = None,
    ) -> None:
        self.name = name
        self.provenance = provenance
        self.bad = bad or BadRows()
        self._questions = questions

    @property
    def ids(self) -> list[str]:
        """Sample ids in the order of iteration."""
        return [question.id for question in self._questions]

    @property
    def has_images(self) -> bool:
        """False where no question is known to hold an image or a video."""
        return any(question.has_image for question in self._questions)

    def subset(self, ids: Iterable[str], bad: BadRows | None = None) -> DataSet:
        """The questions with these ids, in the order of the ids."""
        questions = [self._by_id[sample_id] for sample_id in ids]
        return DataSet(self.name, questions, self.provenance, bad or self.bad)

    @cached_property
    def _by_id(self) -> dict[str, Question]:
        return {question.id: question for question in self._questions}

    def __len__(self) -> int:
        return len(self._questions)

    def __iter__(self) -> Iterator[Sample]:
        for question in self._questions:
            try:
                content = question.load()
            except BadRow as error:
                self.bad.refuse(error, question.id)
                continue
            yield Sample(question.id, *content)


def data_names() -> list[str]:
    """What ``--data`` names, beside files and folders."""
    return [SAMPLE, PAIRS, BOXES, SCENES, TURNS, MIXED, *BENCHMARKS, PAPER, TEXT]


def open_data(
    spec: str,
    *,
    prompt: str | None = None,
    limit: int | None = None,
    seed: int = 42,
    skip_bad: bool = False,
) -> DataSet:
    """Open a data set."""
    if limit is not None and limit < 1:
        raise NormprobeError(
            f"--limit: expected at least 1 question, received {limit}", "pass --limit 1 or more"
        )
    bad = BadRows(skip=skip_bad)
    name, sources = _read(spec, prompt, bad)
    if prompt is not None and any(source.benchmark != IMAGES for source in sources):
        raise NormprobeError(
            f"--prompt: {spec} has prompts of its own; expected a folder of images",
            "leave --prompt out",
        )
    if spec.partition(":")[0] == PAPER:
        questions = _draw_paper(sources, seed, bad)
    else:
        questions = all_questions(sources)
    drawn = draw_questions(questions, limit, seed)
    provenance = {
        "data": spec,
        "seed": seed,
        "limit": limit,
        "samples": len(drawn),
        "sources": [_describe(source) for source in sources],
    }
    return DataSet(name, drawn, provenance, bad)


def _read(spec: str, prompt: str | None, bad: BadRows) -> tuple[str, list[QuestionSource]]:
    """A short name and the sources of a ``--data`` argument."""
    name, colon, rest = spec.partition(":")
    if spec == SAMPLE:
        return SAMPLE, read_folder(bundled_data_dir(), bad)
    if spec in (PAIRS, BOXES):
        return spec, [read_file(bundled_data_dir() / "images" / f"{spec}.jsonl", bad)]
    if folder := {SCENES: SCENES, TURNS: SCENES, MIXED: MIXED}.get(spec):
        return spec, [read_file(bundled_data_dir() / folder / f"{spec}.jsonl", bad)]
    if name in BENCHMARKS:
        subset = rest if colon else next(iter(BENCHMARKS[name].subsets))
        return spec.replace(":", "-"), [_read_hub(name, subset, bad)]
    if name == TEXT:
        path = Path(rest) if colon else _BUNDLED_PROMPTS
        return path.stem if colon else TEXT, [read_text(path)]
    if name == PAPER and colon:
        return PAPER, _choose_sources(read_folder(_folder(rest), bad), rest)
    if name == PAPER:
        return PAPER, [_read_hub(part, subset, bad) for part, (subset, _) in SHARES.items()]
    path = Path(spec)
    if path.is_dir():
        return path.resolve().name, read_folder(path, bad, prompt)
    if path.is_file():
        return path.stem, [read_file(path, bad)]
    raise _unknown(spec)


def require_data(spec: str) -> None:
    """Refuse what is neither a name of data nor a path, before a model is loaded for it."""
    if spec.partition(":")[0] not in data_names() and not Path(spec).exists():
        raise _unknown(spec)


def _unknown(spec: str) -> NormprobeError:
    folder, names = Path(spec).parent, data_names()
    beside = [str(file) for file in folder.glob("*")] if folder.is_dir() else []
    return NormprobeError(
        f"--data: expected {', '.join(names)}, or an existing file or folder; received {spec!r}",
        did_you_mean(
            spec, [*names, *beside], f"check the spelling; --data {SAMPLE} needs no download"
        ),
    )


def _read_hub(name: str, subset: str, bad: BadRows) -> QuestionSource:
    benchmark = BENCHMARKS[name]
    if subset not in benchmark.subsets:
        raise NormprobeError(
            f"--data {name}:{subset}: expected one of {', '.join(benchmark.subsets)}",
            did_you_mean(
                subset,
                benchmark.subsets,
                f"pass --data {name}:{next(iter(benchmark.subsets))}, or a path as ./{name}",
            ),
        )
    rows, where = load_hub_table(benchmark, subset)
    return read_question_table(benchmark, rows, subset, where, bad)


def _folder(path: str) -> Path:
    if not Path(path).is_dir():
        raise NormprobeError(
            f"--data {PAPER}:{path}: expected a folder",
            "name the folder that holds the published files of MMBench, POPE and MMStar",
        )
    return Path(path)


def _describe(source: QuestionSource) -> dict[str, Any]:
    facts = {"benchmark": source.benchmark, "prompt": source.template}
    return facts | source.where | {"questions": len(source.questions)}


def bundled_data_dir() -> Path:
    """Return the folder of the bundled files, in an installed wheel or in a checkout."""
    here = Path(__file__).resolve().parent
    installed = here / "bundled"  # the build maps benchmarks_data to this place
    checkout = here.parents[1] / "benchmarks_data"
    for folder in (installed, checkout):
        if folder.is_dir():
            return folder
    raise NormprobeError(
        f"the bundled questions are missing: neither {installed} nor {checkout} exists",
        "reinstall normprobe, or pass a data file with --data PATH",
    )


def draw_questions(questions: Sequence[Question], limit: int | None, seed: int) -> list[Question]:
    """Draw ``limit`` questions that depend on the seed and the questions alone.

    Questions are ordered by a hash of seed, benchmark and key, and the first ones are kept. So the
    draw does not depend on row order, shards or a library's random generator, and a larger limit
    extends a smaller one.
    """
    return list(questions) if limit is None else _shuffled(questions, seed)[:limit]


def _shuffled(questions: Sequence[Question], seed: int) -> list[Question]:
    """All questions, in the order of a hash of seed, benchmark and key."""

    def position(question: Question) -> str:
        label = f"{seed}|{question.benchmark}|{question.key}"
        return hashlib.sha256(label.encode()).hexdigest()

    return sorted(questions, key=position)


def _choose_sources(sources: Sequence[QuestionSource], folder: str) -> list[QuestionSource]:
    """Choose the three files of a folder that hold the paper's benchmarks."""
    chosen = []
    for name, (subset, _) in SHARES.items():
        found = [source for source in sources if source.benchmark == name]
        named = [source for source in found if subset in source.label.lower()]
        found = named if len(found) > 1 and named else found
        if len(found) != 1:
            raise NormprobeError(
                f"{folder}: expected one file of {name} ({subset}), received {len(found)}",
                "put the published files of MMBench, POPE and MMStar there, one of each",
            )
        chosen.append(_only(found[0], subset))
    return chosen


def _draw_paper(sources: Sequence[QuestionSource], seed: int, bad: BadRows) -> list[Question]:
    """Draw the paper's samples; decodes the image of each question that it considers."""
    drawn, seen = [], set[str]()
    for source in sources:
        share, mine = SHARES[source.benchmark][1], list[Question]()
        for question in _shuffled(source.questions, seed):
            if len(mine) == share:
                break
            try:
                images = question.load().images
            except BadRow as error:
                bad.refuse(error, question.id)
                continue
            picture = image_hash(images[0]) if images else None
            if picture is not None and picture not in seen:
                seen.add(picture)
                mine.append(question)
        if len(mine) < share:
            raise NormprobeError(
                f"{source.benchmark}: expected {share} questions with a picture of their own, "
                f"received {len(mine)}",
                "use the complete published data set",
            )
        drawn += mine
    return drawn


def _only(source: QuestionSource, subset: str) -> QuestionSource:
    """One subset of a table that holds several (POPE), keyed as on the hub; else the table."""
    prefix = f"{subset}/"
    questions = [
        replace(question, key=question.key.removeprefix(prefix))
        for question in source.questions
        if question.key.startswith(prefix)
    ]
    return replace(source, questions=questions) if questions else source
