"""Data files as their formats declare them: what they hold, and what their samples have to say."""

import csv
import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import pyarrow as pa
import soundfile
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet
from support.damage import VALUES

from data.published import LETTER, MMBENCH_COLUMNS, base64_image, encode
from normprobe.data.sample import Sample

#: By name: what each is like, and its bytes. Data files name them, tables hold the bytes.
PICTURES = {
    name: Image.new("RGB", size, colour)
    for name, size, colour in [
        ("a.png", (6, 4), (255, 0, 0)),
        ("ä b.png", (5, 7), (0, 9, 255)),
        ("in/c%20d.png", (9, 3), (1, 2, 3)),
    ]
}
BYTES = {name: encode(picture) for name, picture in PICTURES.items()}
RATE = 16_000
SOUNDS = {"s.wav": np.arange(9) / 16, "s.npy": -np.arange(5) / 8}
FOLDERS = ("", "images", "OCRBench_Images", "train2014")
OUTSIDE = ("../canary", "../../canary", "/canary", "in/../../canary", "file://../canary")
HOSTILE = [*VALUES, *OUTSIDE, "missing.png", "\0", "a" * 5000, "http://a.b/c.png", ".", "in", "~"]


class Said(NamedTuple):
    """What a sample has to say."""

    prompt: str
    pictures: tuple[str, ...] = ()
    answer: str | None = None
    options: tuple[str, ...] = ()
    earlier: tuple[tuple[str, str], ...] = ()
    key: str | None = None  # None: made of the content
    frames: tuple[str, ...] = ()
    sounds: tuple[str, ...] = ()


class Written(NamedTuple):
    """Rows of a format, what they say, and what makes a file of them: its path, and ``--data``."""

    rows: list[dict[str, Any]]
    said: list[Said]
    write: Callable[[Path, list[dict[str, Any]]], tuple[Path, Path]]


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(
    lambda text: text.strip() not in ("", "nan")
)
NAMES = st.sampled_from(sorted(PICTURES))
YES_NO = ("yes", "no")


def lettered(options: Sequence[str]) -> str:
    """Those that are there, in lines."""
    told = zip("ABCDE", options, strict=False)
    return "\n".join(f"{letter}. {text}" for letter, text in told if text not in ("", "nan"))


def letters_of(options: Sequence[str]) -> tuple[str, ...]:
    told = zip("ABCDE", options, strict=False)
    return tuple(letter for letter, text in told if text not in ("", "nan"))


@st.composite
def own_row(draw: st.DrawFn, number: int) -> tuple[dict[str, Any], Said]:
    """A prompt, or a conversation, about any number of pictures."""
    names = draw(st.lists(NAMES, max_size=2))
    users = draw(st.lists(TEXTS, min_size=1, max_size=3))
    replies = draw(st.lists(TEXTS, min_size=len(users) - 1, max_size=len(users)))
    row: dict[str, Any] = {"id": f"{number}"} if draw(st.booleans()) else {"id": number}
    talks, inside = len(users) > 1 or bool(replies), False
    if names and draw(st.booleans()):
        users[0] = "<image>" * len(names) + users[0]
    if talks:
        told: list[Any] = [text for pair in zip(users, replies, strict=False) for text in pair]
        told += users[len(replies) :]
        inside = draw(st.booleans()) and "<image>" not in users[0]
        if inside:
            parts = [{"type": "image", "url": name} for name in names]
            told[0] = [*parts, {"type": "text", "text": users[0]}]
            users[0] = "<image>" * len(names) + users[0]
        who, says = draw(st.sampled_from([("role", "content"), ("from", "value")]))
        roles = ("human", "gpt") if who == "from" else ("user", "assistant")
        cell = [{who: roles[n % 2], says: text} for n, text in enumerate(told)]
        row[draw(st.sampled_from(["messages", "conversations"]))] = cell
    else:
        row["prompt"] = users[0]
    if names and not inside:
        row |= {"image": names[0]} if len(names) == 1 else {"images": names}
    answer = replies[-1].strip() if len(replies) == len(users) else None
    options: tuple[str, ...] = ()
    if draw(st.booleans()):
        options = tuple(draw(st.lists(TEXTS.map(str.strip), min_size=1, max_size=3)))
        answer = options[0]
        row |= {"answer": answer, "options": [*options]}
    earlier = tuple(zip(users[:-1], replies, strict=False))
    return row, Said(users[-1], tuple(names), answer, options, earlier, f"{number}")


@st.composite
def clip_row(draw: st.DrawFn, number: int) -> tuple[dict[str, Any], Said]:
    """A clip of frames, or a sound."""
    prompt, row = draw(TEXTS), {"id": f"{number}", "fps": draw(st.integers(1, 60))}
    if draw(st.booleans()):
        frames = [draw(NAMES)] * draw(st.integers(1, 3))
        said = Said(prompt, key=f"{number}", frames=tuple(frames))
        return row | {"prompt": prompt, "video": frames}, said
    name = draw(st.sampled_from(sorted(SOUNDS)))
    row |= {"prompt": prompt, "audio": name, "rate": RATE}
    return row, Said(prompt, key=f"{number}", sounds=(name,))


@st.composite
def lines(draw: st.DrawFn) -> Written:
    """One's own, in lines or in one list."""
    kind = draw(st.sampled_from([own_row, own_row, clip_row]))
    rows, said = zip(*(draw(kind(n)) for n in range(draw(COUNTS))), strict=True)
    return Written([*rows], [*said], partial(json_file, draw(st.sampled_from(["jsonl", "json"]))))


def json_file(end: str, folder: Path, rows: list[Any]) -> tuple[Path, Path]:
    file = folder / f"mine.{end}"
    told = json.dumps(rows) if end == "json" else "".join(json.dumps(row) + "\n" for row in rows)
    file.write_text(told)
    return file, file


def table_file(name: str, folder: Path, rows: list[dict[str, Any]]) -> tuple[Path, Path]:
    """TSV, parquet or, of any other name, a folder of ``save_to_disk``."""
    columns = {key: [row.get(key) for row in rows] for row in rows for key in row}
    file = folder / name
    if file.suffix == ".tsv":
        with file.open("w", encoding="utf-8", newline="") as opened:
            table = csv.writer(opened, "excel-tab", quoting=csv.QUOTE_ALL, lineterminator="\n")
            table.writerow(columns)
            table.writerows(zip(*columns.values(), strict=True))
    elif file.suffix:
        parquet.write_table(pa.table(columns), file)
    else:
        datasets.disable_progress_bars()
        datasets.Dataset(pa.table(columns)).save_to_disk(file)
        return file / "data-00000-of-00001.arrow", file
    return file, file


@st.composite
def own_table(draw: st.DrawFn) -> Written:
    """The same names as columns."""
    rows, said = [], []
    with_key = draw(st.booleans())
    for number in range(draw(COUNTS)):
        prompt, name, answer = draw(TEXTS), draw(st.none() | NAMES), draw(st.just("") | TEXTS)
        row = {"prompt": prompt, "image": name or "", "answer": answer}
        rows.append({"id": f"{number}", **row} if with_key else row)
        pictures, key = (name,) if name else (), f"{number}" if with_key else None
        said.append(Said(prompt, pictures, answer.strip() or None, key=key))
    return Written(rows, said, partial(table_file, draw(st.sampled_from(["a.tsv", "a.parquet"]))))


@st.composite
def text_lines(draw: st.DrawFn) -> Written:
    """Prompts alone."""
    prompts = [" ".join(draw(TEXTS).splitlines()) or "x" for _ in range(draw(COUNTS))]

    def write(folder: Path, rows: list[dict[str, Any]]) -> tuple[Path, Path]:
        file = folder / "mine.txt"
        told = "".join(f"{row['prompt']}\n\n" for row in rows if "prompt" in row)
        file.write_text(told, encoding="utf-8", newline="", errors="surrogatepass")
        return file, file

    rows = [{"prompt": prompt} for prompt in prompts]
    return Written(rows, [Said(p.strip()) for p in prompts], write)


@st.composite
def picture_folder(draw: st.DrawFn) -> Written:
    """Pictures, some of them below."""
    names = sorted(draw(st.lists(NAMES, min_size=1, unique=True)), key=Path)

    def write(folder: Path, rows: list[dict[str, Any]]) -> tuple[Path, Path]:
        file = own = folder / "pictures"
        shutil.rmtree(own, ignore_errors=True)
        for row in rows:
            file = own / row["name"]
            if not file.resolve().is_relative_to(own) or file == own or "canary" in row["name"]:
                raise ValueError(file)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(row["bytes"])
        return file, own

    rows = [{"name": name, "bytes": BYTES[name]} for name in names]
    return Written(rows, [Said("Describe the image.", (name,), key=name) for name in names], write)


@st.composite
def mmbench(draw: st.DrawFn) -> Written:
    rows, said = [], []
    optional = st.sampled_from(["", "nan"]) | TEXTS
    for number in range(1, 1 + draw(COUNTS)):
        hint, options = draw(optional), [draw(TEXTS), *(draw(optional) for _ in range(3))]
        question, name = draw(TEXTS), draw(NAMES)
        again = draw(st.sampled_from([None, *range(1, number)]))  # the picture of another row
        image = base64_image(BYTES[name]) if again is None else f"{again}"
        if again is not None:
            while len(rows[again - 1]["image"]) < 9:
                again = int(rows[again - 1]["image"])
            image, name = f"{again}", said[again - 1].pictures[0]
        answer = draw(st.sampled_from(letters_of(options)))
        cells = [f"{number}", question, hint, *options, image]
        rows.append(dict(zip(MMBENCH_COLUMNS, cells, strict=True)) | {"answer": answer})
        told = [hint] * (hint not in ("", "nan")) + [question, lettered(options), LETTER]
        said.append(
            Said("\n".join(told), (name,), answer, letters_of(options), key=f"{number}"),
        )
    return Written(rows, said, partial(table_file, "mmbench.tsv"))


@st.composite
def pope(draw: st.DrawFn) -> Written:
    rows, said = [], []
    ask = "Answer the question using a single word or phrase."
    for number in range(draw(COUNTS)):
        name, text, answer = draw(NAMES), draw(TEXTS), draw(st.sampled_from(YES_NO))
        rows.append({"question_id": number, "image": name, "text": text, "label": answer})
        said.append(Said(f"{text}\n{ask}", (name,), answer, YES_NO, key=f"{number}"))

    return Written(rows, said, partial(json_file, "jsonl"))


@st.composite
def ocrbench(draw: st.DrawFn) -> Written:
    """Its official list."""
    rows, said = [], []
    for _ in range(draw(COUNTS)):
        name, text = draw(NAMES), draw(TEXTS)
        rows.append({"question": text, "dataset_name": "IIIT5K", "image_path": name})
        said.append(Said(text, (name,)))
    return Written(rows, said, partial(json_file, "json"))


@st.composite
def hub_table(draw: st.DrawFn) -> Written:
    """Tables with pictures inside: MMStar, AI2D, ScienceQA."""
    kind, rows, said = draw(st.sampled_from(["mmstar", "ai2d", "scienceqa"])), [], []
    for number in range(draw(COUNTS)):
        name, text = draw(NAMES), draw(TEXTS)
        row: dict[str, Any] = {"question": text, "image": {"bytes": BYTES[name], "path": "../x"}}
        options = draw(st.lists(TEXTS, min_size=4, max_size=4))
        told, letters = f"{text}\n{lettered(options)}\n{LETTER}", letters_of(options)
        at = draw(st.integers(0, 3))
        key, names = None, (name,)
        if kind == "mmstar":
            row |= {"index": number, "meta_info": {"source": "x"}, "answer": "ABCD"[at]}
            told, letters, key = f"{text}\n{LETTER[:-1]}", tuple("ABCD"), f"{number}"
        elif kind == "ai2d":
            row |= {"options": options, "answer": f"{at}"}
        else:
            row |= {"choices": options, "answer": at, "hint": "Look."}
            told = f"Context: Look.\n{told}"
            if number and draw(st.booleans()):
                row["image"], names = None, ()
        rows.append(row)
        said.append(Said(told, names, "ABCD"[at], letters, key=key))
    # To save takes ten times as long.
    end = draw(st.sampled_from([".parquet"] * 9 + [""]))
    return Written(rows, said, partial(table_file, f"val{end}"))


@st.composite
def referring(draw: st.DrawFn) -> Written:
    """COCO's form with captions; the box of each is the picture."""
    rows, said = [], []
    for number in range(draw(COUNTS)):
        name, word = draw(NAMES), draw(st.text("abcä", min_size=1, max_size=5))
        size = PICTURES[name].size
        rows.append(
            {"id": number, "caption": word, "file_name": name, "bbox": [0, 0, *size]},
        )
        said.append(Said(f"Where is {word}?", (name,), key=f"{number}"))

    def write(folder: Path, rows: list[dict[str, Any]]) -> tuple[Path, Path]:
        images = [{k: v for k, v in row.items() if k != "bbox"} for row in rows]
        boxes = [{"id": r.get("id"), "image_id": r.get("id"), "bbox": r.get("bbox")} for r in rows]
        file = folder / "refs.json"
        file.write_text(json.dumps({"images": images, "annotations": boxes}))
        return file, file

    return Written(rows, said, write)


COUNTS = st.integers(1, 4)
FORMATS = [
    *(lines, own_table, text_lines, picture_folder),
    *(mmbench, pope, ocrbench, hub_table, referring),
]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Written, str, int]:
    """What is written, how it is damaged, and a seed for that."""
    made = draw(st.sampled_from(FORMATS).flatmap(lambda of: of()))
    how = draw(st.sampled_from(["sound"] * 6 + ["bytes", "fields", "cells", "cells"]))
    if how == "cells":
        row = draw(st.sampled_from(made.rows))
        row[draw(st.sampled_from(sorted(row)))] = draw(st.sampled_from(HOSTILE))
    return made, how, draw(st.integers(0, 2**32))


def lay_media(folder: Path) -> None:
    """Put what data files name beside them."""
    for below in FOLDERS:
        for name, data in BYTES.items():
            (folder / below / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / below / name).write_bytes(data)
    soundfile.write(folder / "s.wav", SOUNDS["s.wav"], RATE, subtype="FLOAT")
    np.save(folder / "s.npy", SOUNDS["s.npy"])


def check_said(sample: Sample, said: Said) -> None:
    """Hold a sample against what was written."""
    assert sample.prompt == said.prompt
    assert [each.tobytes() for each in sample.images] == [
        PICTURES[name].tobytes() for name in said.pictures
    ]
    assert [each.size for each in sample.images] == [PICTURES[n].size for n in said.pictures]
    assert [tuple(turn) for turn in sample.earlier] == [*said.earlier]
    assert (sample.answer and sample.answer.text) == said.answer
    assert (sample.answer.options if sample.answer else ()) == said.options
    frames = [frame.tobytes() for video in sample.videos for frame in video.frames]
    assert frames == [PICTURES[name].tobytes() for name in said.frames]
    for sound, name in zip(sample.audios, said.sounds, strict=True):
        np.testing.assert_array_equal(sound.samples, SOUNDS[name])
    if said.key is not None:
        assert sample.id.partition("/")[2] == said.key
