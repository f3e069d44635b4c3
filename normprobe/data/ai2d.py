"""AI2D: questions about diagrams of school books, four options. Rows have no id.

https://prior.allenai.org/projects/diagram-understanding
"""

from __future__ import annotations

from normprobe.data.bad_rows import BadRows
from normprobe.data.benchmark import ANSWER_WITH_LETTER, Benchmark, Question, moved
from normprobe.data.question_table import read_question_table
from normprobe.data.tables import Rows

#: The wording of lmms-eval.
TEMPLATE = "{question}\n{options}\n" + ANSWER_WITH_LETTER


def _read(rows: Rows, bad: BadRows) -> list[Question]:
    return read_question_table("ai2d", rows, bad, template=TEMPLATE, key=None, options=("options",))


AI2D = Benchmark(
    name="ai2d",
    template=TEMPLATE,
    subsets={"test": moved("ai2d", None, "test")},
    columns=("question", "options", "answer", "image"),
    read=_read,
)
