"""Two rows of each benchmark as the hub holds them, rows of the MMBench TSV, encoded images."""

import base64
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image

from normprobe.data.benchmarks import BENCHMARKS
from normprobe.data.data_set import DataSet


def encode(image: Image.Image, file_format: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def write_tsv(path: Path, rows: list[list[str]], encoding: str = "utf-8") -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding=encoding)
    return path


def write_lines(path: Path, *rows: Any) -> Path:
    """JSON lines; text is written as it is."""
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(line + "\n" for line in lines))
    return path


LETTER = "Answer with the option's letter from the given choices directly."
RED, BLUE, GREEN = (encode(Image.new("RGB", (6, 4), name)) for name in ("red", "blue", "green"))


@dataclass(frozen=True)
class Published:
    """What the hub publishes of a benchmark.

    Attributes:
        columns: two rows; ``hub_table`` adds a red and a blue image.
        prompt: of the first row.
        call: data set id, configuration and split of the default subset.
    """

    columns: dict[str, list[Any]]
    prompt: str
    call: tuple[str, str | None, str]


PUBLISHED = {
    "mmbench": Published(
        {
            "index": ["5", "6"],
            "question": ["Which?", "Why?"],
            "hint": ["nan", "Look."],
            "answer": ["A", "B"],
            "A": ["cat", "so"],
            "B": ["dog", "None"],
            "C": ["nan", "nan"],
            "D": [None, None],
        },
        f"Which?\nA. cat\nB. dog\n{LETTER}",
        ("lmms-lab-encoder/MMBench", "en", "dev"),
    ),
    "mmbench_cn": Published(
        {
            "index": ["5", "6"],
            "question": ["哪一个", "为什么"],
            "hint": ["nan", "请看图。"],
            "answer": ["A", "B"],
            "A": ["猫", "因为"],
            "B": ["狗", "None"],
            "C": ["nan", "nan"],
            "D": [None, None],
        },
        "哪一个\nA. 猫\nB. 狗\n请直接回答选项字母。",
        ("lmms-lab-encoder/MMBench", "cn", "dev"),
    ),
    "pope": Published(
        {"question_id": ["1", "2"], "question": ["Is it red?", "Is it?"], "answer": ["yes"] * 2},
        "Is it red?\nAnswer the question using a single word or phrase.",
        ("lmms-lab-encoder/POPE", "Full", "adversarial"),
    ),
    "mmstar": Published(
        {
            "index": [0, 1],
            "question": ["Which?\nOptions: A: x, B: y", "Why?\nOptions: A: y, B: x"],
            "meta_info": [{"source": "x"}] * 2,
        },
        f"Which?\nOptions: A: x, B: y\n{LETTER[:-1]}",
        ("Lin-Chen/MMStar", None, "val"),
    ),
    "seedbench2plus": Published(
        {
            "question_id": ["7", "7"],
            "question": ["Which?", "Why?"],
            "choice_A": ["cat", "so"],
            "choice_B": ["dog", "thus"],
            "choice_C": ["None", "hence"],
            "choice_D": ["hen", "then"],
            "answer": ["A", "B"],
        },
        f"Which?\nA. cat\nB. dog\nC. None\nD. hen\n{LETTER}",
        ("doolayer/SEED-Bench-2-Plus", None, "test"),
    ),
    "ocrbench": Published(
        {
            "dataset": ["IIIT5K"] * 2,
            "question": ["what is written in the image?"] * 2,
            "question_type": ["Regular Text Recognition"] * 2,
            "answer": [["RED"], ["BLUE"]],
        },
        "what is written in the image?",
        ("echo840/OCRBench", None, "test"),
    ),
    "scienceqa": Published(
        {
            "question": ["Which?", "Why?"],
            "choices": [["cat", "dog"], ["so", "thus", "hence", "then", "None"]],
            "answer": [0, 1],
            "hint": ["Look.", ""],
        },
        f"Context: Look.\nWhich?\nA. cat\nB. dog\n{LETTER}",
        ("lmms-lab-encoder/ScienceQA", "ScienceQA-IMG", "test"),
    ),
    "ai2d": Published(
        {
            "question": ["Which?", "Why?"],
            "options": [["cat", "dog", "ox", "None"], ["so", "thus", "hence", "then"]],
            "answer": ["0", "3"],
        },
        f"Which?\nA. cat\nB. dog\nC. ox\nD. None\n{LETTER}",
        ("lmms-lab-encoder/ai2d", None, "test"),
    ),
}


#: Tables of the others have the columns of one of these.
TOLD_BY_COLUMNS = [name for name, entry in BENCHMARKS.items() if entry.file_names is None]


def hub_table(name: str, rows: tuple[int, ...] = (0, 1)) -> pa.Table:
    """Rows of a benchmark's table on the hub."""
    images = [{"bytes": data, "path": "x"} for data in (RED, BLUE)]
    columns = PUBLISHED[name].columns | {"image": images}
    return pa.table({key: [values[row] for row in rows] for key, values in columns.items()})


def check_two_samples(data: DataSet, name: str) -> None:
    """Assert that a data set holds the two rows of ``hub_table``, in any order."""
    first, second = sorted(data, key=lambda sample: sample.image.getpixel((0, 0)), reverse=True)
    assert first.prompt == PUBLISHED[name].prompt
    assert first.image.getpixel((0, 0)) == (255, 0, 0)
    assert second.image.getpixel((0, 0)) == (0, 0, 255)
    assert [source["benchmark"] for source in data.provenance["sources"]] == [name]
    assert all(sample_id.startswith(f"{name}/") for sample_id in data.ids)


def base64_image(data: bytes = RED) -> str:
    """An image cell of a TSV."""
    return base64.b64encode(data).decode()


MMBENCH_COLUMNS = ["index", "question", "hint", "A", "B", "C", "D", "image"]


def mmbench_row(index, image=None, question="What?", hint="", options=("a", "b", "", "")):
    """One row of the official TSV; the image is red by default."""
    return [str(index), question, hint, *options, base64_image() if image is None else image]


def write_mmbench(path: Path, *rows: list[str]) -> Path:
    """An MMBench TSV with its header."""
    return write_tsv(path, [MMBENCH_COLUMNS, *rows])
