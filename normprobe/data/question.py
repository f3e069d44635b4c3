"""Questions before their rows are read, and the recipes that make them of rows."""

from __future__ import annotations

import hashlib
import json
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from normprobe.data.rows import BadRow, BadRows, Row, is_present, printable, require_columns
from normprobe.data.sample import Answer, Referent, Turn
from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    from PIL import Image

    from normprobe.data.media import Audio, Video

_HASH_LENGTH = 16  # hexadecimal digits


class Content(NamedTuple):
    """What a row says, as ``Sample`` has it."""

    prompt: str
    images: tuple[Image.Image, ...] = ()
    referent: Referent | None = None
    answer: Answer | None = None
    videos: tuple[Video, ...] = ()
    audios: tuple[Audio, ...] = ()
    earlier: tuple[Turn, ...] = ()


@dataclass(frozen=True)
class Question:
    """One row of a data set, not read yet."""

    benchmark: str  # name of the benchmark; of one's own data ``text``, ``prompts`` or ``images``
    key: str  # identifies the row within the data set
    # reads the row and decodes its images. Raises ``BadRow`` if the row cannot be used.
    load: Callable[[], Content]
    has_image: bool = True  # False where the row is known to hold neither an image nor a video

    @property
    def id(self) -> str:
        """Unique within a data set."""
        return f"{self.benchmark}/{self.key}"


@dataclass(frozen=True)
class QuestionSource:
    """The questions of one table, file or folder."""

    benchmark: str  # as in ``Question``
    template: str  # their prompt, as a format string
    label: str  # short; tells apart the sources of one benchmark
    where: dict[str, Any]  # JSON-able record of where they come from
    questions: list[Question]  # all of them


@dataclass(frozen=True)
class Recipe:
    """How the rows of one form become questions; what it calls raises ``BadRow``."""

    benchmark: str  # as in ``Question``
    template: str  # as in ``QuestionSource``
    # what identifies a row: text of its own, or its content as bytes, which are hashed
    key: Callable[[Row], str | bytes]
    prompt: Callable[[Row], str]  # the prompt of a row
    # the pictures of a row; of all rows by key, one may hold the picture of another
    images: Callable[[Row, Mapping[str, Row]], tuple[Image.Image, ...]] = lambda row, rows: ()
    # the videos and sounds of a row
    others: Callable[[Row], tuple[tuple[Video, ...], tuple[Audio, ...]]] = lambda row: ((), ())
    # what a word of the prompt means in the pictures
    referent: Callable[[Row, str, Sequence[Image.Image]], Referent | None] = lambda *_: None
    # the turns before the prompt
    earlier: Callable[[Row], tuple[Turn, ...]] = lambda row: ()
    # the right answer, where the row holds it
    answer: Callable[[Row], Answer | None] = lambda row: None
    # False for a row that is known to hold neither an image nor a video
    has_image: Callable[[Row], bool] = lambda row: True
    columns: Sequence[str] = ()  # that every row has to have, where rows are not those of one table
    key_column: str = ""  # names the key where two rows have the same

    def source(
        self, rows: Iterable[Row], label: str, where: dict[str, Any], bad: BadRows
    ) -> QuestionSource:
        """The questions of rows, each with its key; rows without one of their own are bad."""
        keyed = _by_key(self, rows, bad)
        questions = [
            Question(self.benchmark, key, partial(_content, self, row, keyed), self.has_image(row))
            for key, row in keyed.items()
        ]
        return QuestionSource(self.benchmark, self.template, label, where, questions)


def _content(recipe: Recipe, row: Row, rows: Mapping[str, Row]) -> Content:
    prompt = recipe.prompt(row)
    images = recipe.images(row, rows)
    referent, answer = recipe.referent(row, prompt, images), recipe.answer(row)
    return Content(prompt, images, referent, answer, *recipe.others(row), recipe.earlier(row))


def _by_key(recipe: Recipe, rows: Iterable[Row], bad: BadRows) -> dict[str, Row]:
    """Rows by key. Repeats of a hashed row get ``-2``, ``-3``, ...; a repeated text is bad."""
    keyed: dict[str, Row] = {}
    hashed = Counter[str]()
    for row in rows:
        try:
            _check_columns(row, recipe.columns)
            key = recipe.key(row)
            if isinstance(key, bytes):
                key = hashlib.sha256(key).hexdigest()[:_HASH_LENGTH]
                hashed[key] += 1
                key = key if hashed[key] == 1 else f"{key}-{hashed[key]}"
            if key in keyed:
                raise BadRow(
                    row.place.at(recipe.key_column),
                    f"{printable(key)} stands already in {keyed[key].place}",
                    "give every row its own key; remove rows that were pasted twice",
                )
        except BadRow as error:
            bad.refuse(error)
        else:
            keyed[key] = row
    return keyed


def _check_columns(row: Row, columns: Sequence[str]) -> None:
    try:
        require_columns(list(row.cells), columns, row.place)
    except NormprobeError as error:
        fault = error.problem.removeprefix(f"{row.place}: ")
        raise BadRow(row.place, fault, error.remedy) from error


def json_content(row: Row) -> bytes:
    """The content of a row, whatever the order of its names."""
    return json.dumps(dict(row.cells), sort_keys=True, default=repr).encode()


def all_questions(sources: Sequence[QuestionSource]) -> list[Question]:
    """The questions of all sources; where sources share a benchmark, the label joins the key."""
    names = [source.benchmark for source in sources]
    return [
        # POPE's three official files number their questions alike.
        replace(question, key=f"{source.label}/{question.key}")
        if names.count(source.benchmark) > 1
        else question
        for source in sources
        for question in source.questions
    ]


def fill_template(template: str, cells: Mapping[str, Any]) -> str:
    r"""Fill a prompt template; a line with an absent cell is left out.

    >>> fill_template("{hint}\n{question}", {"hint": "", "question": "What is it?"})
    'What is it?'
    """
    lines = []
    for line in template.split("\n"):
        names = [name for _, name, _, _ in string.Formatter().parse(line) if name]
        if all(is_present(cells.get(name)) for name in names):
            lines.append(line.format_map(cells))
    return "\n".join(lines)


def lettered(options: Iterable[tuple[str, Any]]) -> str:
    r"""Letters and options as lines; absent options are left out.

    >>> lettered([("A", "cat"), ("B", "dog"), ("C", None)])
    'A. cat\nB. dog'
    """
    return "\n".join(f"{letter}. {option}" for letter, option in options if is_present(option))
