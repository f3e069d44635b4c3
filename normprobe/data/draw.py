"""Which questions ``--limit`` keeps."""

import hashlib
from collections.abc import Sequence

from normprobe.data.question import Question


def draw(questions: Sequence[Question], limit: int | None, seed: int) -> list[Question]:
    """Draw ``limit`` questions that depend on the seed and the questions alone.

    Questions are ordered by a hash of seed, benchmark and key, and the first ones are kept. So the
    draw does not depend on row order, shards or a library's random generator, and a larger limit
    extends a smaller one.
    """
    return list(questions) if limit is None else shuffled(questions, seed)[:limit]


def shuffled(questions: Sequence[Question], seed: int) -> list[Question]:
    """All questions, in the order of a hash of seed, benchmark and key."""

    def position(question: Question) -> str:
        label = f"{seed}|{question.benchmark}|{question.key}"
        return hashlib.sha256(label.encode()).hexdigest()

    return sorted(questions, key=position)
