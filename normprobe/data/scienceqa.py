"""ScienceQA: school questions, two to five options, about half of them with a picture.

The default subset holds those with a picture. Rows have no id.
https://github.com/lupantech/ScienceQA
"""

from __future__ import annotations

from normprobe.data.bad_rows import BadRows
from normprobe.data.benchmark import ANSWER_WITH_LETTER, Benchmark, Question, moved
from normprobe.data.question_table import read_question_table
from normprobe.data.tables import Rows

#: The wording of lmms-eval.
TEMPLATE = "Context: {hint}\n{question}\n{options}\n" + ANSWER_WITH_LETTER


def _read(rows: Rows, bad: BadRows) -> list[Question]:
    return read_question_table(
        "scienceqa", rows, bad, template=TEMPLATE, key=None, options=("choices",), text_only=True
    )


SCIENCEQA = Benchmark(
    name="scienceqa",
    template=TEMPLATE,
    subsets={
        "img": moved("ScienceQA", "ScienceQA-IMG", "test"),
        "full": moved("ScienceQA", "ScienceQA-FULL", "test"),
    },
    columns=("image", "question", "choices", "hint"),
    read=_read,
)
