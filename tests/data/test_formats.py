import pyarrow as pa
import pytest
from pyarrow import parquet

from data.files import write_tsv
from normprobe.data.formats import read_json_lines, read_parquet, read_tsv
from normprobe.data.rows import BadRows
from normprobe.errors import NormprobeError

HEADER = ["index", "question", "A"]


def tsv(path, skip=False):
    return read_tsv(path, BadRows(skip=skip))


def test_tsv_cells_stay_text(tmp_path):
    rows = [["1", "None", "NA"], ["2", "null", ""], ["3", "007", "1.50"]]
    table = tsv(write_tsv(tmp_path / "x.tsv", [HEADER, *rows])).table
    assert [list(row.values()) for row in table.to_pylist()] == rows


def test_tsv_with_byte_order_mark(tmp_path):
    path = write_tsv(tmp_path / "x.tsv", [HEADER, ["1", "q", "a"]], encoding="utf-8-sig")
    assert tsv(path).columns == HEADER


def test_tsv_cell_beyond_the_limit_of_the_csv_module(tmp_path):
    path = write_tsv(tmp_path / "x.tsv", [HEADER, ["1", "q", "a" * 3_000_000]])
    assert len(next(iter(tsv(path))).cells["A"]) == 3_000_000


def test_tsv_quoted_cell_with_line_breaks(tmp_path):
    path = write_tsv(tmp_path / "x.tsv", [HEADER, ["1", '"two\nlines of ""text"""', "a"]])
    assert next(iter(tsv(path))).cells["question"] == 'two\nlines of "text"'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no rows"),
        (b"\n\n", "holds no rows"),
        (b"index\tquestion\tA\n", "holds no rows"),
        (b"index\tquestion\tA", "holds no rows"),
        (b"index\tquestion\tA\n1\tq\ta\n2\tq\n", "row 2: expected 3 columns, received 2"),
        (b"index\tquestion\tA\n1\tq\ta\tz\n", "row 1: expected 3 columns, received 4"),
        (b'index\tquestion\tA\n1\tq\ta\n2\t"q\ta\n3\tq\ta\n', "row 2: a quote opened here"),
        (
            b'index\tquestion\tA\n1\t"q\ta\n2\tq"\ta\n3\tq\ta\n',
            "row 1, column question: a quote opened here is not closed",
        ),
        ("index\tquestion\tA\n1\tcafé\ta\n".encode("latin-1"), "line 2: expected UTF-8"),
        ("index\tquestion\tA\n1\tq\ta\n".encode("utf-16"), "line 1: expected UTF-8"),
    ],
)
def test_bad_tsv_is_refused(tmp_path, content, message):
    path = tmp_path / "bad.tsv"
    path.write_bytes(content)
    with pytest.raises(NormprobeError, match=message) as refusal:
        tsv(path)
    assert str(path) in refusal.value.problem
    assert "\n" not in refusal.value.problem


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(NormprobeError, match="cannot be read"):
        tsv(tmp_path / "none.tsv")


def test_json_lines(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('\ufeff{"a": 1}\n\n{"a": "\u2028"}\n', encoding="utf-8")
    rows = [(str(place), row) for place, row in read_json_lines(path, BadRows())]
    assert rows == [
        (f"{path}, line 1", {"a": 1}),
        (f"{path}, line 3", {"a": "\u2028"}),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no rows"),
        (b'{"a": 1}\n[1, 2]\n', "line 2: expected a JSON object, received list"),
        (b'{"a": 1}\n{"a": \n', "line 2: not JSON"),
        ('{"a": "é"}'.encode("latin-1"), "expected UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "expected UTF-8"),
    ],
)
def test_bad_json_lines_are_refused(tmp_path, content, message):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(NormprobeError, match=message) as refusal:
        read_json_lines(path, BadRows())
    assert str(path) in refusal.value.problem


def test_text_of_parquet_is_utf8(tmp_path):
    cells = pa.array([b"\xff\xfe"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 1, cells.buffers())
    parquet.write_table(pa.table({"question": text}), tmp_path / "bad.parquet")
    with pytest.raises(NormprobeError, match="Invalid UTF8"):
        read_parquet([tmp_path / "bad.parquet"])


@pytest.mark.parametrize("content", [b"", b"PAR1 but not parquet"])
def test_bad_parquet_is_refused(tmp_path, content):
    path = tmp_path / "bad.parquet"
    path.write_bytes(content)
    with pytest.raises(NormprobeError, match=r"bad\.parquet: expected a parquet file"):
        read_parquet([path])


def test_a_parquet_that_claims_more_rows_than_memory_holds(tmp_path):
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"question": pa.nulls(10_000_001)}), path)
    assert path.stat().st_size < 100_000
    with pytest.raises(NormprobeError, match="the file claims 10000001"):
        read_parquet([path])
