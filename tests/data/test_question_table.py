"""Rows of a table to questions: keys, options, images, and what is refused when."""

import random

import pyarrow as pa
import pytest
from pyarrow import parquet

from data.files import write_tsv
from data.published import (
    BLUE,
    GREEN,
    PUBLISHED,
    RED,
    base64_image,
    hub_table,
    mmbench_row,
    write_mmbench,
)
from normprobe.data.benchmarks import BENCHMARKS
from normprobe.data.data_set import open_data
from normprobe.data.local import read_file
from normprobe.data.rows import BadRows
from normprobe.errors import NormprobeError


def read(tmp_path, *rows):
    return read_file(write_mmbench(tmp_path / "mmbench.tsv", *rows), BadRows()).questions


def read_parquet(tmp_path, **columns):
    path = tmp_path / "val.parquet"
    parquet.write_table(pa.table(columns), path)
    return read_file(path, BadRows()).questions


def test_short_image_cell_names_the_row_with_the_image(tmp_path):
    first, second = read(
        tmp_path,
        mmbench_row(1, image="1000002"),
        mmbench_row(2),
        mmbench_row(1000002, image=base64_image(BLUE)),
    )
    assert first.load()[1][0].getpixel((0, 0)) == (0, 0, 255)
    assert second.load()[1][0].getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([mmbench_row(1), mmbench_row(1)], "row 2, column index: '1' stands already in .*row 1"),
        ([mmbench_row("x")], "row 1, column index: expected a whole number, received 'x'"),
        ([mmbench_row("")], "row 1, column index: expected a whole number"),
    ],
)
def test_bad_index_is_refused_at_once(tmp_path, rows, message):
    with pytest.raises(NormprobeError, match=message):
        read(tmp_path, *rows)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"question": ""}, "row 2, column question: expected text"),
        ({"image": ""}, "row 2, column image: expected the bytes of an image"),
        ({"image": "55"}, "row 2, column image: .* index of another row, received '55'"),
        ({"image": "2"}, "row 2, column image: expected"),  # itself
        ({"image": "*" * 80}, "row 2, column image: expected base64"),
        ({"image": "AAAA" * 20}, "row 2, column image: expected an image, received 60 bytes"),
    ],
)
def test_bad_cell_is_refused_when_read(tmp_path, cells, message):
    good, bad = read(tmp_path, mmbench_row(1), mmbench_row(2, **cells))
    good.load()
    with pytest.raises(NormprobeError, match=message):
        bad.load()


def test_bad_cells_of_parquet_are_refused_when_read(tmp_path, red_png):
    image = {"bytes": red_png, "path": None}
    text, empty = read_parquet(
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


def test_duplicate_index_and_no_rows_are_refused(tmp_path):
    two = {name: ["1", "1"] for name in ("index", "question", "image", "meta_info")}
    with pytest.raises(NormprobeError, match="row 2, column index: '1' stands already in"):
        read_parquet(tmp_path, **two)
    with pytest.raises(NormprobeError, match="holds no rows"):
        read_parquet(tmp_path, **{name: pa.array([], pa.string()) for name in two})


ODD = {
    "integers": pa.array([1, 2]),
    "floats": pa.array([1.5, float("nan")]),
    "bools": pa.array([True, None]),
    "lists": pa.array([[1], [2, None]]),
    "texts": pa.array([["a"], None]),
    "structs": pa.array([{"x": 1}, {"x": None}]),
    "nulls": pa.nulls(2),
    "bytes": pa.array([b"\xff", b""]),
    "dates": pa.array([1, 2], pa.timestamp("s")),
    "words": pa.array(["\x00", "x" * 100]),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", BENCHMARKS)
def test_columns_of_odd_types_end_in_known_failures(tmp_path, name, odd):
    for place, column in enumerate(BENCHMARKS[name].columns):
        table = hub_table(name)
        at = table.column_names.index(column)
        path = tmp_path / f"{place}.parquet"
        parquet.write_table(table.set_column(at, column, ODD[odd]), path)
        for skip in (False, True):
            try:
                samples = list(open_data(str(path), skip_bad=skip))
            except NormprobeError as error:
                assert "\n" not in error.problem
            else:
                assert all(sample.prompt.strip() for sample in samples)


def test_a_list_of_options_that_is_none_is_refused(tmp_path):
    columns = PUBLISHED["ai2d"].columns | {
        "options": [["a", None], None],
        "image": [{"bytes": RED, "path": ""}] * 2,
    }
    parquet.write_table(pa.table(columns), tmp_path / "test.parquet")
    first, second = read_file(tmp_path / "test.parquet", BadRows()).questions
    with pytest.raises(NormprobeError, match="row 1, column options: expected text, received None"):
        first.load()
    with pytest.raises(NormprobeError, match="row 2, column options: expected a list of options"):
        second.load()


def test_rows_without_an_id_are_named_by_what_they_hold(tmp_path):
    columns = {
        "dataset": ["x"] * 4,
        "question": ["what is written?"] * 4,
        "question_type": ["y"] * 4,
        "image": [{"bytes": data, "path": ""} for data in (RED, BLUE, GREEN, RED)],
    }
    order = list(range(4))
    found = []
    for seed in range(3):
        random.Random(seed).shuffle(order)
        shuffled = {name: [cells[row] for row in order] for name, cells in columns.items()}
        parquet.write_table(pa.table(shuffled), tmp_path / "test.parquet")
        found.append({s.id: s.image_hash for s in open_data(str(tmp_path))})
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 4
    assert sum(sample_id.endswith("-2") for sample_id in found[0]) == 1  # the red one twice


def test_an_option_column_that_is_there_twice_is_refused(tmp_path):
    header = ["index", "question", "A", "A", "image"]
    path = write_tsv(tmp_path / "AI2D_TEST.tsv", [header, ["1", "q", "a", "b", "x"]])
    with pytest.raises(NormprobeError, match="columns A are there twice"):
        open_data(str(path))
