"""Bad rows: an error that names the place, or everything else and a list."""

import json

import pytest

from data.published import mmbench_row, write_mmbench
from normprobe.data.data_set import open_data
from normprobe.data.rows import BadRow, BadRows, Place, RefusedSample
from normprobe.errors import NormprobeError

ROWS = [
    mmbench_row(1),
    [*mmbench_row(2), "one cell more"],
    mmbench_row(""),
    mmbench_row(4, image="AAAA" * 20),
    mmbench_row(5, question=""),
    mmbench_row(1),
    mmbench_row(7, image="99"),
    mmbench_row(8, image="1"),
]
FAULTS = [
    (2, None, None, "expected 8 columns, received 9"),
    (3, "index", None, "expected a whole number, received ''"),
    (4, "image", "mmbench/4", "expected an image, received 60 bytes"),
    (5, "question", "mmbench/5", "expected text, received ''"),
    (6, "index", None, "'1' stands already in"),
    (7, "image", "mmbench/7", "expected base64 or the index of another row, received '99'"),
]


def test_the_rest_is_read_and_every_fault_has_its_place(tmp_path):
    path = write_mmbench(tmp_path / "mmbench.tsv", *ROWS)
    data = open_data(str(path), skip_bad=True)
    assert [sample.id for sample in data] == ["mmbench/1", "mmbench/8"]
    assert [sample.id for sample in data] == ["mmbench/1", "mmbench/8"]  # listed once all the same
    found = sorted(data.bad.skipped, key=lambda row: row.row)
    assert [(row.row, row.column, row.sample) for row in found] == [fault[:3] for fault in FAULTS]
    for row, fault in zip(found, FAULTS, strict=True):
        assert row.file == str(path)
        assert row.reason.startswith(fault[3])


@pytest.mark.parametrize("fault", range(len(FAULTS)))
def test_without_the_option_each_fault_is_an_error(tmp_path, fault):
    row, column, _, reason = FAULTS[fault]
    # The first row stays, and so do the numbers of the others.
    rows = [r if n in (0, row - 1) else mmbench_row(50 + n) for n, r in enumerate(ROWS)]
    path = write_mmbench(tmp_path / "mmbench.tsv", *rows)
    with pytest.raises(NormprobeError) as refusal:
        list(open_data(str(path)))
    where = f"{path}, row {row}" + (f", column {column}" if column else "")
    assert refusal.value.problem.startswith(f"{where}: {reason}")


def test_lines_of_json(tmp_path, red_png):
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.png").write_bytes(red_png)
    good = {"question_id": 1, "image": "a.png", "text": "Is it?"}
    lines = [
        json.dumps(good),
        "{",
        "[1]",
        json.dumps({"question_id": 4, "image": "a.png"}),
        '{"question_id": 5, "question_id": 6, "image": "a.png", "text": "x"}',
        '{"question_id": NaN, "image": "a.png", "text": "x"}',
        '{"question_id": 7, "image": "a.png", "text": "\\ud800"}',
        "[" * 100_000,
        json.dumps(good | {"question_id": 9}),
    ]
    (tmp_path / "pope.json").write_text("\n".join(lines))
    data = open_data(str(tmp_path / "pope.json"), skip_bad=True)
    assert [sample.id for sample in data] == ["pope/1", "pope/9"]
    assert sorted(row.row for row in data.bad.skipped) == [2, 3, 4, 5, 6, 7, 8]
    with pytest.raises(NormprobeError, match="line 2: not JSON"):
        open_data(str(tmp_path / "pope.json"))


def test_an_unclosed_quote_is_an_error_all_the_same(tmp_path):
    # What it swallowed would be lost without a word.
    rows = [mmbench_row(1, question='"What?'), mmbench_row(2), [*mmbench_row(3), 'x"']]
    path = write_mmbench(tmp_path / "mmbench.tsv", *rows)
    with pytest.raises(NormprobeError, match="a quote opened here is not closed"):
        open_data(str(path), skip_bad=True)


def test_nothing_left(tmp_path):
    rows = [[*mmbench_row(number), "more"] for number in (1, 2)]
    path = write_mmbench(tmp_path / "mmbench.tsv", *rows)
    with pytest.raises(NormprobeError, match="none of its 2 rows"):
        open_data(str(path), skip_bad=True)


def test_refusals_of_others_are_listed_too():
    bad = BadRows(skip=True)
    bad.refuse(RefusedSample("The processor refuses pope/1.", "Leave it out."), "pope/1")
    bad.refuse(BadRow(Place("f", 3, "c"), "is\nbad.", "Mend it."))
    first, second = bad.skipped
    assert (first.file, first.sample, first.reason) == (
        None,
        "pope/1",
        "The processor refuses pope/1.",
    )
    assert (second.file, second.row, second.column, second.reason) == ("f", 3, "c", "is bad.")
    with pytest.raises(RefusedSample):
        BadRows().refuse(RefusedSample("x", "y"))
