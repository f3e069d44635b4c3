"""Files of a run: whole or not at all, CSV, strict JSON, and no file that is not its own."""

import csv
import errno
import io
import json
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from support import made_tables
from support.made_runs import run_folder

from normprobe.errors import NormprobeError
from normprobe.run import load_run, page_of
from normprobe.runs.files import (
    csv_bytes,
    csv_table,
    is_own,
    json_bytes,
    json_text,
    jsonable,
    own_files,
    own_picture,
    write_by_rename,
)
from normprobe.runs.run_folder import read_image


def test_the_file_appears_whole_and_parents_are_made(tmp_path):
    path = tmp_path / "a" / "b.txt"
    write_by_rename(path, b"one")
    write_by_rename(path, b"two")
    assert path.read_bytes() == b"two"
    assert [file.name for file in path.parent.iterdir()] == ["b.txt"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no space left in {}"),
        (errno.EDQUOT, "no space left in {}"),
        (errno.EACCES, "{} is not writable"),
        (errno.EROFS, "{} is not writable"),
        (errno.EIO, "cannot write in {}"),
    ],
)
def test_a_refusal_names_the_folder_and_leaves_the_old_file(tmp_path, monkeypatch, number, words):
    path = tmp_path / "b.txt"
    write_by_rename(path, b"old")

    def half_a_write(descriptor):
        os.ftruncate(descriptor, 2)
        raise OSError(number, "refused")

    monkeypatch.setattr(os, "fsync", half_a_write)
    for parts in ([], ["part-00001.parquet"]):
        for name in parts:
            (tmp_path / name).touch()
        with pytest.raises(NormprobeError) as caught:
            write_by_rename(path, b"new content")
        assert words.format(tmp_path) in caught.value.problem
        assert ("complete parts are kept" in caught.value.remedy) == bool(parts)
        assert path.read_bytes() == b"old"
        assert {each.name for each in tmp_path.iterdir()} == {path.name, *parts}


def test_interrupt_leaves_no_temporary_file(tmp_path, monkeypatch):
    def interrupted(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_by_rename(tmp_path / "b.txt", b"new")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "a").write_text("a file")
    with pytest.raises(NormprobeError, match="cannot write in"):
        write_by_rename(tmp_path / "a" / "b.txt", b"new")


def test_links_out_of_a_folder_and_pipes_are_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("key")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a.csv").write_text("key")
    run = tmp_path / "run"
    run.mkdir()
    (run / "layers.csv").write_text("layer\n")
    (run / "inside.csv").symlink_to(run / "layers.csv")
    (run / "link.csv").symlink_to(tmp_path / "secret.csv")
    (run / "broken.csv").symlink_to(tmp_path / "absent")
    (run / "folder.csv").mkdir()
    (run / "plots").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(run / "pipe.csv")
    assert [file.name for file in own_files(run, "*.csv")] == ["inside.csv", "layers.csv"]
    assert not is_own(run / "plots/a.csv", run)
    (tmp_path / "linked").symlink_to(run)  # the folder itself may be reached by a link
    assert is_own(tmp_path / "linked/layers.csv", tmp_path / "linked")


def png(width: int, height: int) -> bytes:
    """A picture of one grey level; of a large one the first rows: no more is to be read."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    rows = zlib.compressobj()
    line = b"\0" * (1 + -(-width // 8))  # of one bit a pixel
    data = b"".join(rows.compress(line) for _ in range(min(height, 300))) + rows.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    ending = chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + ending


@pytest.mark.parametrize("side", [9_000, 13_000, 30_000])  # Pillow warns at 9,500, fails at 13,400
def test_pictures_are_bounded_before_they_are_read(side: int, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", "layers", layers=made_tables.layers())
    (run / "plots").mkdir(exist_ok=True)
    (run / "plots/mine.png").write_bytes(png(side, side))
    (run / "image.png").write_bytes(png(side, side))
    with pytest.raises(NormprobeError, match=r"mine\.png: .* pixels"):
        page_of([load_run(run)])
    with pytest.raises(NormprobeError, match=r"image\.png: .* pixels"):
        read_image(run, "image")


def test_pictures_of_a_usual_size_are_read(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(png(300, 200))
    assert read_image(tmp_path, "image").shape == (200, 300, 3)


@pytest.mark.parametrize("kind", ["GIF", "TIFF"])
def test_no_other_decoder_is_asked(kind: str, tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png", format=kind)
    with pytest.raises(OSError, match="cannot identify"), own_picture(tmp_path / "a.png", tmp_path):
        pass


@pytest.mark.parametrize("name", ["layers.csv", "run.json"])
def test_tables_are_bounded_before_they_are_read(name: str, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", "layers", layers=made_tables.layers())
    with (run / name).open("r+b") as file:
        file.truncate(2**40)  # with a hole: no disk is taken
    with pytest.raises(NormprobeError, match="expected 128 MB at most, received 1048576"):
        _ = load_run(run).table


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


def test_values_of_every_origin():
    value = {
        "path": Path("a/b"),
        "nan": float("nan"),
        "numpy": np.float32(0.5),
        "integer": np.int64(3),
        "flag": np.bool_(True),
        "array": np.array([1.0, np.inf]),
        "float64": np.float64("nan"),
        "tuple": (1, 2),
        "set": {"b", "a"},
        3: None,
    }
    assert jsonable(value) == {
        "path": "a/b",
        "nan": None,
        "numpy": 0.5,
        "integer": 3,
        "flag": True,
        "array": [1.0, None],
        "float64": None,
        "tuple": [1, 2],
        "set": ["a", "b"],
        "3": None,
    }


def test_arguments_that_are_no_utf8_survive():
    argv = ["--data", "question\udce9", "café"]
    assert json.loads(json_bytes(argv)) == argv


def test_floats_keep_full_precision():
    assert json.loads(json_bytes([0.1 + 0.2])) == [0.1 + 0.2]


def test_tables_are_strict_and_exact():
    table = made_tables.layers()
    rows = json.loads(json_text(table))
    assert len(rows) == len(table)
    assert rows[0]["angle_mean"] is None
    assert rows[1]["cosine_mean"] == np.cos(made_tables.VISUAL_ANGLE[1])
    assert rows[1]["angle_below_resolution"] is False
