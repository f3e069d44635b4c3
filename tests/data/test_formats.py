import datasets
import pyarrow as pa
import pytest
from pyarrow import parquet

from data.published import write_tsv
from normprobe.data import formats
from normprobe.data.formats import read_json_lines, read_parquet, read_saved_folder, read_tsv
from normprobe.data.rows import BadRows
from normprobe.errors import NormprobeError

HEADER = ["index", "question", "A"]


def tsv(path, skip=False):
    return read_tsv(path, BadRows(skip=skip))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        *((row, row) for row in (["1", "None", "NA"], ["2", "null", ""], ["3", "007", "1.50"])),
        (["1", "q", "a" * 3_000_000], ["1", "q", "a" * 3_000_000]),  # beyond the csv module
        (["1", '"two\nlines of ""text"""', "a"], ["1", 'two\nlines of "text"', "a"]),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_tsv_cells_stay_text(tmp_path, written, read, encoding):
    rows = tsv(write_tsv(tmp_path / "x.tsv", [HEADER, written], encoding=encoding))
    ((place, cells),) = rows
    assert str(place) == f"{tmp_path / 'x.tsv'}, row 1"
    assert dict(cells) == dict(zip(HEADER, read, strict=True))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad.tsv", b"", "holds no rows"),
        ("bad.tsv", b"\n\n", "holds no rows"),
        ("bad.tsv", b"index\tquestion\tA\n", "holds no rows"),
        ("bad.tsv", b"index\tquestion\tA", "holds no rows"),
        (
            "bad.tsv",
            b"index\tquestion\tA\n1\tq\ta\n2\tq\n",
            "row 2: expected 3 columns, received 2",
        ),
        ("bad.tsv", b"index\tquestion\tA\n1\tq\ta\tz\n", "row 1: expected 3 columns, received 4"),
        (
            "bad.tsv",
            b'index\tquestion\tA\n1\tq\ta\n2\t"q\ta\n3\tq\ta\n',
            "row 2: a quote opened here",
        ),
        (
            "bad.tsv",
            b'index\tquestion\tA\n1\t"q\ta\n2\tq"\ta\n3\tq\ta\n',
            "row 1, column question: a quote opened here is not closed",
        ),
        ("bad.tsv", "index\tquestion\tA\n1\tcafé\ta\n".encode("latin-1"), "line 2: expected UTF-8"),
        ("bad.tsv", "index\tquestion\tA\n1\tq\ta\n".encode("utf-16"), "line 1: expected UTF-8"),
        ("bad.jsonl", b"", "holds no rows"),
        ("bad.jsonl", b'{"a": 1}\n[1, 2]\n', "line 2: expected a JSON object, received list"),
        ("bad.jsonl", b'{"a": 1}\n{"a": \n', "line 2: not JSON"),
        ("bad.jsonl", '{"a": "é"}'.encode("latin-1"), "expected UTF-8"),
        ("bad.jsonl", '{"a": 1}'.encode("utf-16"), "expected UTF-8"),
    ],
)
def test_bad_text_is_refused(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(NormprobeError, match=message) as refusal:
        read_json_lines(path, BadRows()) if name == "bad.jsonl" else tsv(path)
    assert str(path) in refusal.value.problem
    assert "\n" not in refusal.value.problem


def test_rows_keep_their_numbers_where_some_are_left_out(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("index\tquestion\tA\n1\tq\ta\n2\tq\n3\tq\ta\n4\tq\ta\n", encoding="utf-8")
    rows = [(str(place), cells["index"]) for place, cells in tsv(path, skip=True)]
    assert rows == [(f"{path}, row {number}", str(number)) for number in (1, 3, 4)]


def test_json_lines(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('\ufeff{"a": 1}\n\n{"a": "\u2028"}\n', encoding="utf-8")
    rows = [(str(place), row) for place, row in read_json_lines(path, BadRows())]
    assert rows == [
        (f"{path}, line 1", {"a": 1}),
        (f"{path}, line 3", {"a": "\u2028"}),
    ]


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


BIG = "x" * 2**16  # a cell; thousands of it take some hundred bytes of a file


@pytest.mark.parametrize("kind", ["text", "dictionary"])
def test_a_parquet_of_a_few_bytes_that_fills_memory_is_refused(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(formats, "_MAX_BYTES", 2**22)
    cells = pa.array([BIG] * 2000)
    table = pa.table({"prompt": cells.dictionary_encode() if kind == "dictionary" else cells})
    del cells
    path = tmp_path / "val.parquet"
    parquet.write_table(table, path, compression="zstd")
    assert path.stat().st_size < 10_000
    del table
    own = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(own)
    pa.set_memory_pool(counting)
    try:
        with pytest.raises(NormprobeError, match="expected at most 4194304 bytes of cells"):
            read_parquet([path])
    finally:
        pa.set_memory_pool(own)
    assert counting.max_memory() < 2**25


def test_cells_of_a_saved_data_set_that_take_more_than_its_file_are_refused(tmp_path):
    folder, table = tmp_path / "saved", pa.table({"question": [BIG] * 200})
    datasets.Dataset(table).save_to_disk(folder)
    assert len(read_saved_folder(folder)[0][1].places) == 200
    (file,) = folder.glob("*.arrow")
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(file, table.schema, options=options) as stream:
        stream.write_table(table)
    with pytest.raises(NormprobeError, match=r"expected a saved data set .* is compressed"):
        read_saved_folder(folder)
