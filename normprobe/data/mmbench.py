"""MMBench: one picture, one question, up to four options.

The published table repeats every question with its options rotated ("CircularEval", for scoring);
those copies carry indices from one million on and are no further questions.
https://github.com/open-compass/MMBench
"""

from __future__ import annotations

from typing import Any

from normprobe.data.bad_rows import BadRow, BadRows, Place
from normprobe.data.benchmark import ANSWER_WITH_LETTER, Benchmark, HubSource, Question, moved
from normprobe.data.keys import key_cell
from normprobe.data.question_table import read_question_table
from normprobe.data.tables import Rows, require_columns

#: The wording LLaVA-1.5 was evaluated with.
TEMPLATE = "{hint}\n{question}\n{options}\n" + ANSWER_WITH_LETTER
COLUMNS = ("index", "question", "hint", "A", "B", "C", "D", "image")

_FIRST_COPY = 1_000_000


def _read(rows: Rows, bad: BadRows) -> list[Question]:
    require_columns(rows.columns, COLUMNS, rows.source)
    questions = read_question_table(
        "mmbench", rows, bad, template=TEMPLATE, key="index", parse_key=_index
    )
    # The copies are left out only now: an image cell may name any row.
    return [question for question in questions if int(question.key) < _FIRST_COPY]


def _index(cell: Any, place: Place) -> str:
    try:
        return str(int(key_cell(cell, place)))
    except (BadRow, ValueError) as error:
        raise BadRow(
            place,
            f"expected a whole number, received {str(cell)[:40]!a}.",
            "Give every row its number; shifted columns show here first.",
        ) from error


MMBENCH = Benchmark(
    name="mmbench",
    template=TEMPLATE,
    subsets={
        split: (
            *moved("MMBench", "en", split),
            HubSource("HuggingFaceM4/MMBench", None, {"dev": "validation"}.get(split, split)),
        )
        for split in ("dev", "test")
    },
    columns=COLUMNS,
    read=_read,
)
