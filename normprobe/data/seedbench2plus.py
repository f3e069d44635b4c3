"""SEED-Bench-2-Plus: charts, maps and web pages full of text, four options.

Rows are keyed by their content: nothing says that the published ids are unique.

https://github.com/AILab-CVC/SEED-Bench
"""

from __future__ import annotations

from normprobe.data.bad_rows import BadRows
from normprobe.data.benchmark import ANSWER_WITH_LETTER, Benchmark, HubSource, Question
from normprobe.data.question_table import read_question_table
from normprobe.data.tables import Rows

#: The wording of lmms-eval.
TEMPLATE = "{question}\n{options}\n" + ANSWER_WITH_LETTER

_CHOICES = ("choice_A", "choice_B", "choice_C", "choice_D")


def _read(rows: Rows, bad: BadRows) -> list[Question]:
    return read_question_table(
        "seedbench2plus", rows, bad, template=TEMPLATE, key=None, options=_CHOICES
    )


SEEDBENCH2PLUS = Benchmark(
    name="seedbench2plus",
    template=TEMPLATE,
    subsets={"test": (HubSource("doolayer/SEED-Bench-2-Plus", None, "test"),)},
    columns=("question_id", "question", *_CHOICES, "image"),
    read=_read,
)
