"""A question before its row is read, and the questions of one table, file or folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from normprobe.data.region import Referent

if TYPE_CHECKING:
    from PIL import Image


class Content(NamedTuple):
    """What a row says, as ``Sample`` has it."""

    prompt: str
    images: tuple[Image.Image, ...] = ()
    referent: Referent | None = None


@dataclass(frozen=True)
class Question:
    """One row of a data set, not read yet.

    Attributes:
        benchmark: name of the benchmark; of one's own data ``text``, ``prompts`` or ``images``.
        key: identifies the row within the data set.
        load: reads the row and decodes its images. Raises ``BadRow`` if the row cannot be used.
        has_image: False where the row is known to be text alone.
    """

    benchmark: str
    key: str
    load: Callable[[], Content]
    has_image: bool = True

    @property
    def id(self) -> str:
        """Unique within a data set."""
        return f"{self.benchmark}/{self.key}"


@dataclass(frozen=True)
class Source:
    """The questions of one table, file or folder.

    Attributes:
        benchmark: as in ``Question``.
        template: their prompt, as a format string.
        label: short; tells apart the sources of one benchmark.
        where: JSON-able record of where they come from.
        questions: all of them.
    """

    benchmark: str
    template: str
    label: str
    where: dict[str, Any]
    questions: list[Question]


def all_questions(sources: Sequence[Source]) -> list[Question]:
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
