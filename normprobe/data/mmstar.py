"""MMStar: questions that cannot be answered without the picture, four options in the question.

https://github.com/MMStar-Benchmark/MMStar
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from normprobe.data.benchmark import Benchmark, HubSource, Question
from normprobe.data.question_table import read_question_table
from normprobe.data.tables import read_parquet

if TYPE_CHECKING:
    import pyarrow as pa

#: The wording of lmms-eval, which ends without a full stop.
TEMPLATE = "{question}\nAnswer with the option's letter from the given choices directly"

# meta_info is not read. It tells MMStar from other parquet files with a question and an image,
# whose options would be lost without a word.
COLUMNS = ("index", "question", "image", "meta_info")


def _read_file(path: Path) -> list[Question]:
    return _read_table(read_parquet(path, COLUMNS), str(path))


def _read_table(table: pa.Table, source: str) -> list[Question]:
    return read_question_table("mmstar", table, source, key="index", template=TEMPLATE)


MMSTAR = Benchmark(
    name="mmstar",
    template=TEMPLATE,
    suffixes=(".parquet",),
    hub=HubSource(("Lin-Chen/MMStar",), config=None, split="val"),
    read_file=_read_file,
    read_table=_read_table,
)
