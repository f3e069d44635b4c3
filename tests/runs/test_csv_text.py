import csv
import io

import numpy as np
import pandas as pd
import pytest

from normprobe.runs.files import csv_bytes, csv_table

FORMULAS = [
    "=1+1",
    '=HYPERLINK("http://a","b")',
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "\uff1d1",
]
KEPT = ["'", "'a", "a=1", "''", " =1", "nan", "", "1"]
BEHIND = ["'=1", "''-", "'\t"]


@pytest.mark.parametrize(
    "data",
    [
        b",".join(b"c%d" % number for number in range(200_000)) + b"\n",
        b"layer,norm\n" + b",".join([b"1"] * 200_000) + b"\n",
    ],
    ids=["names", "row"],
)
def test_more_columns_than_a_table_has_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="expected 1000 columns at most"):
        csv_table(data)


@pytest.mark.parametrize("text", [*FORMULAS, *KEPT, *BEHIND])
def test_text_reads_back_as_it_was_and_is_no_formula(text: str) -> None:
    table = pd.DataFrame({"token": [text, "x"], "norm": [-0.5, np.nan]})
    data = csv_bytes(table)
    pd.testing.assert_frame_equal(csv_table(data), table, check_dtype=False)
    (_, (cell, norm), _) = csv.reader(io.StringIO(data.decode(), newline=""))
    assert cell == ("'" + text if text in FORMULAS + BEHIND else text)
    assert norm == "-0.5"  # a number is none


def test_names_of_columns_are_text_too() -> None:
    table = pd.DataFrame({"=1": [-1], "run": ["-1"]})
    assert csv_bytes(table) == b"'=1,run\n-1,'-1\n"
    pd.testing.assert_frame_equal(csv_table(csv_bytes(table)), table, check_dtype=False)


@pytest.mark.parametrize(
    "name",
    ["token", "query", "run", "sample", "layers", "holds_in", "fails_in", "open_in", "exempt_in"],
)
def test_text_that_reads_like_a_number_stays_text(name: str) -> None:
    table = pd.DataFrame({name: ["1", "07"], "norm": [1.0, 2.0]})
    assert csv_table(csv_bytes(table))[name].tolist() == ["1", "07"]
