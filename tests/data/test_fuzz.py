"""Damaged files: whatever the bytes are, there is an answer or a known failure, soon."""

import base64
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet
from support.damage import assert_two_lines, files_below, mutated, within

from data.published import encode, write_lines, write_mmbench
from normprobe.data.data_set import open_data
from normprobe.errors import NormprobeError

FORMATS = {
    "PNG": {},
    "JPEG": {"exif": b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"},
    "GIF": {},
    "BMP": {},
    "TIFF": {"compression": "tiff_lzw"},
    "WEBP": {},
    "PPM": {},
}


@pytest.fixture
def picture() -> Image.Image:
    return Image.frombytes("RGB", (24, 16), random.Random(0).randbytes(24 * 16 * 3))


def a_tsv(folder: Path, picture: Image.Image) -> Path:
    cell = base64.b64encode(encode(picture, "JPEG")).decode()
    rows = [
        ["1", "Which?", "Look.", "cat", "dog", "", "", cell],
        ["2", '"two\nlines"', "", "None", "NA", "ox", "hen", "1"],
        ["1000001", "Which?", "", "dog", "cat", "", "", "1"],
        ["3", "café?", "nan", "a", "b", "", "", cell],
    ]
    return write_mmbench(folder / "mmbench.tsv", *rows)


def some_pope_lines(folder: Path, picture: Image.Image, name: str = "pope.json") -> Path:
    text, key, image = ("text", "question_id", "a.png")
    if name == "mine.jsonl":
        text, key, image = ("prompt", "id", "images/a.png")
    (folder / "images").mkdir(exist_ok=True)
    (folder / "images/a.png").write_bytes(encode(picture))
    rows = [{key: number, "image": image, text: "Is it — red?"} for number in range(4)]
    return write_lines(folder / name, *rows)


def some_prompt_lines(folder: Path, picture: Image.Image) -> Path:
    return some_pope_lines(folder, picture, "mine.jsonl")


def some_chat_lines(folder: Path, picture: Image.Image) -> Path:
    (folder / "a.png").write_bytes(encode(picture))
    parts = [{"type": "image", "url": "a.png"}, {"type": "text", "text": "Is it — red?"}]
    said = [{"role": "user", "content": parts}, {"role": "assistant", "content": "No."}]
    return write_lines(folder / "chat.jsonl", *[{"id": n, "messages": said} for n in range(4)])


def a_parquet(folder: Path, picture: Image.Image) -> Path:
    columns = {
        "index": [0, 1, 2],
        "question": ["Which?\nOptions: A: x", "Why?", None],
        "image": [{"bytes": encode(picture, "JPEG"), "path": "a.jpg"}] * 3,
        "meta_info": [{"source": "x"}] * 3,
    }
    parquet.write_table(pa.table(columns), folder / "val.parquet")
    return folder / "val.parquet"


def saved_rows(folder: Path, picture: Image.Image) -> Path:
    table = parquet.read_table(a_parquet(folder, picture))
    (folder / "val.parquet").unlink()
    datasets.Dataset(table).save_to_disk(folder)
    return folder / "data-00000-of-00001.arrow"


def saved_names(folder: Path, picture: Image.Image) -> Path:
    return saved_rows(folder, picture).with_name("state.json")


def prompts(folder: Path, picture: Image.Image) -> Path:
    (folder / "mine.txt").write_text("Why is the sky blue?\n\nWhat is a café?\n", encoding="utf-8")
    return folder / "mine.txt"


def an_image(folder: Path, picture: Image.Image, kind: str) -> Path:
    (folder / "pictures").mkdir()
    path = folder / "pictures" / "a.png"
    path.write_bytes(encode(picture, kind, **FORMATS[kind]))
    return path


def attack(path: Path, spec: Path, cases: int, chance: random.Random, root: Path) -> Counter[str]:
    """Read ``cases`` mutations of a file; what became of them."""
    sound, outcomes = path.read_bytes(), Counter[str]()
    expected = files_below(root).keys()
    for case in range(cases):
        path.write_bytes(mutated(sound, chance))
        skip = bool(case % 2)
        try:
            with within():
                data = open_data(str(spec), skip_bad=skip)
                samples = list(data)
        except NormprobeError as error:
            outcomes["refused"] += 1
            assert_two_lines(error)
        else:
            outcomes["skipped" if data.bad.skipped else "read"] += 1
            assert skip or len(samples) == len(data)
            assert all(row.reason and "\n" not in row.reason for row in data.bad.skipped)
            for sample in samples:
                assert sample.prompt.strip()
                assert sample.image is None or sample.image.mode == "RGB"
                sample.id.encode()
    path.write_bytes(sound)
    assert files_below(root).keys() == expected
    assert len(list(open_data(str(spec), skip_bad=True))) > 0  # the sound file is read
    return outcomes


TABLES: list[Callable[[Path, Image.Image], Path]] = [
    a_tsv,
    some_pope_lines,
    some_prompt_lines,
    some_chat_lines,
    a_parquet,
    saved_rows,
    saved_names,
    prompts,
]


@pytest.mark.parametrize("make", TABLES)
def test_damaged_tables(make, tmp_path, picture):
    (tmp_path / "in").mkdir()
    path = make(tmp_path / "in", picture)
    spec = path.parent if make in (saved_rows, saved_names) else path
    outcomes = attack(path, spec, 280, random.Random(f"{make.__name__}280"), tmp_path)
    assert outcomes["refused"] >= 10  # the damage is felt


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_images(kind, tmp_path, picture):
    path = an_image(tmp_path, picture, kind)
    outcomes = attack(path, path.parent, 100, random.Random(f"{kind}100"), tmp_path)
    assert outcomes["refused"] >= 5
