"""Bad rows: an error that names the place, or everything else and a list."""

import re

import pytest

from data.published import mmbench_row, write_lines, write_mmbench
from normprobe.data.data_set import open_data
from normprobe.data.rows import (
    BadRow,
    BadRows,
    Place,
    RefusedSample,
    printable,
    require_columns,
)
from normprobe.errors import NormprobeError


def test_the_rest_is_read_and_every_fault_has_its_place(tmp_path):
    rows = [
        mmbench_row(1),
        [*mmbench_row(2), "one cell more"],
        mmbench_row(""),
        mmbench_row(4, image="AAAA" * 20),
        mmbench_row(1),
        mmbench_row(6, image="1"),
    ]
    path = write_mmbench(tmp_path / "mmbench.tsv", *rows)
    data = open_data(str(path), skip_bad=True)
    for _ in range(2):  # each is listed once however often the data are read
        assert [sample.id for sample in data] == ["mmbench/1", "mmbench/6"]
    found = sorted(data.bad.skipped, key=lambda row: row.row)
    assert {row.file for row in found} == {str(path)}
    assert [(row.row, row.column, row.sample) for row in found] == [
        (2, None, None),
        (3, "index", None),
        (4, "image", "mmbench/4"),
        (5, "index", None),
    ]
    with pytest.raises(NormprobeError, match="row 2: expected 8 columns, received 9"):
        open_data(str(path))


def test_lines_of_json(tmp_path, red_png):
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.png").write_bytes(red_png)
    good = {"question_id": 1, "image": "a.png", "text": "Is it?"}
    lines = [
        good,
        "{",
        "[1]",
        {"question_id": 4, "image": "a.png"},
        '{"question_id": 5, "question_id": 6, "image": "a.png", "text": "x"}',
        '{"question_id": NaN, "image": "a.png", "text": "x"}',
        '{"question_id": 7, "image": "a.png", "text": "\\ud800"}',
        "[" * 100_000,
        good | {"question_id": 9},
    ]
    path = str(write_lines(tmp_path / "pope.json", *lines))
    data = open_data(path, skip_bad=True)
    assert [sample.id for sample in data] == ["pope/1", "pope/9"]
    assert sorted(row.row for row in data.bad.skipped) == [2, 3, 4, 5, 6, 7, 8]
    with pytest.raises(NormprobeError, match="line 2: not JSON"):
        open_data(path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        # What it swallowed would be lost without a word.
        (
            [mmbench_row(1, question='"What?'), mmbench_row(2), [*mmbench_row(3), 'x"']],
            "a quote opened here is not closed",
        ),
        ([[*mmbench_row(number), "more"] for number in (1, 2)], "none of its 2 rows"),
    ],
)
def test_what_is_an_error_whether_rows_are_skipped_or_not(tmp_path, rows, message):
    path = write_mmbench(tmp_path / "mmbench.tsv", *rows)
    with pytest.raises(NormprobeError, match=message):
        open_data(str(path), skip_bad=True)


def test_refusals_of_others_are_listed_too():
    bad = BadRows(skip=True)
    bad.refuse(RefusedSample("The processor refuses pope/1.", "Leave it out."), "pope/1")
    bad.refuse(BadRow(Place("f", 3, "c"), "is\nbad.", "Mend it."))
    first, second = bad.skipped
    reason = "The processor refuses pope/1."
    assert (first.file, first.sample, first.reason) == (None, "pope/1", reason)
    assert (second.file, second.row, second.column, second.reason) == ("f", 3, "c", "is bad.")
    with pytest.raises(RefusedSample):
        BadRows().refuse(RefusedSample("x", "y"))


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


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("d\u00e9j\u00e0", "'d\u00e9j\u00e0'"),
        # Text that runs backwards stays in its place.
        ("d\u00e9j\u00e0\u202e\n", r"'d\xe9j\xe0\u202e\n'"),
        (3.5, "3.5"),
        ("x" * 99, "'" + "x" * 59),
    ],
)
def test_a_cell_is_shown_in_one_short_line(value: object, shown: str) -> None:
    assert printable(value) == shown
