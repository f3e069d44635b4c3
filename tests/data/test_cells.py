import re

import pytest

from normprobe.data.rows import require_columns, text_cell
from normprobe.errors import NormprobeError


@pytest.mark.parametrize("value", [None, "", " \n", 3])
def test_text_cell_refuses_what_is_no_text(value):
    with pytest.raises(NormprobeError, match="row 1, column question: expected text"):
        text_cell(value, "x.tsv, row 1, column question")


@pytest.mark.parametrize(
    ("received", "message"),
    [
        (["index"], "x.tsv: missing columns A; received index"),
        ([], "missing columns index, A; received "),
        (["index", "A", "A"], "columns A are there twice"),
        (["a\nb\x1b[2J"], r"received 'a\\nb\\x1b\[2J'"),
        ([f"c{number}" for number in range(30)], r"c18, c19 and 10 more$"),
    ],
)
def test_columns_that_are_missing_or_there_twice(received, message):
    with pytest.raises(NormprobeError) as refusal:
        require_columns(received, ["index", "A"], "x.tsv")
    assert re.search(message, refusal.value.problem)
    assert "\n" not in refusal.value.problem
