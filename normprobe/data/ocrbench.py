"""OCRBench: read what is written in the picture. Its rows have no id.

https://github.com/Yuliang-Liu/MultimodalOCR
"""

from __future__ import annotations

from normprobe.data.bad_rows import BadRows
from normprobe.data.benchmark import Benchmark, HubSource, Question
from normprobe.data.question_table import read_question_table
from normprobe.data.tables import Rows

#: The question says by itself how to answer.
TEMPLATE = "{question}"


def _read(rows: Rows, bad: BadRows) -> list[Question]:
    return read_question_table("ocrbench", rows, bad, template=TEMPLATE, key=None)


OCRBENCH = Benchmark(
    name="ocrbench",
    template=TEMPLATE,
    subsets={"test": (HubSource("echo840/OCRBench", None, "test"),)},
    columns=("dataset", "question", "question_type", "image"),
    read=_read,
)
