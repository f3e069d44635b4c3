"""MMStar: questions that cannot be answered without the picture, four options in the question.

https://github.com/MMStar-Benchmark/MMStar
"""

from __future__ import annotations

from normprobe.data.bad_rows import BadRows
from normprobe.data.benchmark import Benchmark, HubSource, Question
from normprobe.data.mmbench import TEMPLATE as WITH_OPTIONS
from normprobe.data.question_table import read_question_table
from normprobe.data.tables import Rows

#: The wording of lmms-eval, which ends without a full stop.
TEMPLATE = "{question}\nAnswer with the option's letter from the given choices directly"


def _read(rows: Rows, bad: BadRows) -> list[Question]:
    return read_question_table(
        "mmstar", rows, bad, template=MMSTAR.wording(rows.columns), key="index"
    )


MMSTAR = Benchmark(
    name="mmstar",
    template=TEMPLATE,
    subsets={"val": (HubSource("Lin-Chen/MMStar", None, "val"),)},
    # meta_info is not read. It tells MMStar from other tables with a question and an image, whose
    # options would be lost without a word.
    columns=("index", "question", "image", "meta_info"),
    read=_read,
    options_template=WITH_OPTIONS,  # the TSV of VLMEvalKit
)
