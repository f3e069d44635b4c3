"""Damaged files: whatever the bytes are, there is an answer or a known failure, soon."""

import base64
import json
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import datasets
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from data.files import encode
from data.published import write_mmbench
from normprobe.data.data_set import open_data
from normprobe.errors import NormprobeError

LIMIT = 30  # seconds a case; a case takes milliseconds
SPLICES = [
    *(b"\t", b"\n", b"\r\n", b'"', b'\t"', b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b",", b"{", b"}"),
    *(b"nan", b"null", b"None", b"NaN", b"1e999", b"-1", b"1000001", b"9" * 5000, b"../../", b"/"),
    *(
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"\\ud800",
        b"\\u0000",
        b"A" * 200_000,
        b"\xf0\x9f\x98\x80",
    ),
]
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


def some_pope_lines(folder: Path, picture: Image.Image) -> Path:
    return _lines(folder, picture, "pope.json", "text", "question_id")


def some_prompt_lines(folder: Path, picture: Image.Image) -> Path:
    return _lines(folder, picture, "mine.jsonl", "prompt", "id")


def _lines(folder: Path, picture: Image.Image, name: str, text: str, key: str) -> Path:
    (folder / "images").mkdir(exist_ok=True)
    image = "images/a.png" if text == "prompt" else "a.png"
    (folder / "images/a.png").write_bytes(encode(picture))
    rows = [{key: number, "image": image, text: "Is it — red?"} for number in range(4)]
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / name


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


def mutated(data: bytes, chance: random.Random) -> bytes:
    """One to three changes of a kind that transfers, editors and attackers make."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(changed) + 1)
        end = min(len(changed), place + chance.choice((1, 2, 8, 64, 1024)))
        kind = chance.randrange(6)
        if kind == 0:
            changed[place:end] = chance.randbytes(end - place)
        elif kind == 1:
            del changed[place:end]
        elif kind == 2:
            del changed[place:]
        elif kind == 3:
            changed[place:place] = chance.choice(SPLICES)
        elif kind == 4:
            changed[place:place] = changed[place:end]
        elif place < len(changed):
            changed[place] ^= 1 << chance.randrange(8)
    return bytes(changed)


class Hang(BaseException):
    """No Exception: a reader that forgives all of those must not forgive this."""


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail, with the line that hangs, rather than wait for ever."""

    def give_up(*_: object) -> None:
        raise Hang(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def files_below(folder: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_size for path in sorted(folder.rglob("*"))}


def attack(path: Path, spec: Path, cases: int, chance: random.Random, root: Path) -> Counter[str]:
    """Read ``cases`` mutations of a file; what became of them."""
    sound, outcomes = path.read_bytes(), Counter[str]()
    expected = files_below(root).keys()
    for case in range(cases):
        path.write_bytes(mutated(sound, chance))
        skip = bool(case % 2)
        try:
            with within(LIMIT):
                data = open_data(str(spec), skip_bad=skip)
                samples = list(data)
        except NormprobeError as error:
            outcomes["refused"] += 1
            for line in (error.problem, error.remedy):
                assert "\n" not in line, line
                assert len(line) < 2000, line
                line.encode()  # a terminal has to show it
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
    a_parquet,
    saved_rows,
    saved_names,
    prompts,
]


def check_tables(
    make: Callable[[Path, Image.Image], Path], folder: Path, picture: Image.Image, cases: int
) -> Counter[str]:
    (folder / "in").mkdir()
    path = make(folder / "in", picture)
    spec = path.parent if make in (saved_rows, saved_names) else path
    return attack(path, spec, cases, random.Random(f"{make.__name__}{cases}"), folder)


def check_images(kind: str, folder: Path, picture: Image.Image, cases: int) -> Counter[str]:
    path = an_image(folder, picture, kind)
    return attack(path, path.parent, cases, random.Random(f"{kind}{cases}"), folder)


@pytest.mark.parametrize("make", TABLES)
def test_damaged_tables(make, tmp_path, picture):
    outcomes = check_tables(make, tmp_path, picture, 280)
    assert outcomes["refused"] >= 10  # the damage is felt


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_images(kind, tmp_path, picture):
    outcomes = check_images(kind, tmp_path, picture, 100)
    assert outcomes["refused"] >= 5


@pytest.mark.slow
@pytest.mark.parametrize("make", TABLES)
def test_many_damaged_tables(make, tmp_path, picture):
    check_tables(make, tmp_path, picture, 4000)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_many_damaged_images(kind, tmp_path, picture):
    check_images(kind, tmp_path, picture, 2000)
