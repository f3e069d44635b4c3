import pyarrow as pa
import pytest
from pyarrow import parquet

from normprobe.data.bad_rows import BadRows
from normprobe.data.local import read_file
from normprobe.errors import NormprobeError


def read(tmp_path, **columns):
    path = tmp_path / "val.parquet"
    parquet.write_table(pa.table(columns), path)
    return read_file(path, BadRows()).questions


def test_question(tmp_path, red_png):
    (question,) = read(
        tmp_path,
        index=[0],
        question=["Which?\nOptions: A: cat, B: dog, C: ox, D: hen"],
        image=[{"bytes": red_png, "path": None}],
        meta_info=[{"source": "x"}],
    )
    prompt, image = question.load()
    assert question.id == "mmstar/0"
    assert prompt == (
        "Which?\nOptions: A: cat, B: dog, C: ox, D: hen\n"
        "Answer with the option's letter from the given choices directly"
    )
    assert image.size == (6, 4)


def test_bad_rows_are_refused_when_read(tmp_path, red_png):
    image = {"bytes": red_png, "path": None}
    text, empty = read(
        tmp_path,
        index=[0, 1],
        question=[None, "Which?"],
        image=[image, {"bytes": None, "path": "/etc/passwd"}],
        meta_info=["", ""],
    )
    with pytest.raises(NormprobeError, match="row 1, column question: expected text"):
        text.load()
    with pytest.raises(NormprobeError, match="row 2, column image: expected the bytes"):
        empty.load()


def test_parquet_of_another_benchmark_is_refused(tmp_path):
    with pytest.raises(NormprobeError, match="missing columns question_id; received index"):
        read(tmp_path, index=[0], question=["Which?"], A=["cat"], image=["7"])


def test_duplicate_index_and_no_rows_are_refused(tmp_path):
    two = {name: ["1", "1"] for name in ("index", "question", "image", "meta_info")}
    with pytest.raises(NormprobeError, match="row 2, column index: '1' stands already in"):
        read(tmp_path, **two)
    with pytest.raises(NormprobeError, match="holds no rows"):
        read(tmp_path, **{name: pa.array([], pa.string()) for name in two})
