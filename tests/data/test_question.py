"""Rows of every form: a bad one is named by its place, or left out and listed."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from data.published import MMBENCH_COLUMNS, RED, base64_image, write_lines, write_tsv
from normprobe.data.data_set import open_data
from normprobe.errors import NormprobeError

Cells = dict[str, Any]
PICTURE = {"bytes": RED, "path": None}


def tsv(folder: Path, *rows: Cells) -> Path:
    cells = [[row[name] for name in MMBENCH_COLUMNS] for row in rows]
    return write_tsv(folder / "mmbench.tsv", [MMBENCH_COLUMNS, *cells])


def table(folder: Path, *rows: Cells) -> Path:
    parquet.write_table(pa.Table.from_pylist(list(rows)), folder / "rows.parquet")
    return folder / "rows.parquet"


def json_list(folder: Path, *rows: Any) -> Path:
    return write_lines(folder / "official.json", json.dumps(rows, indent=4))


def json_lines(folder: Path, *rows: Cells) -> Path:
    return write_lines(folder / "lines.jsonl", *rows)


def coco(folder: Path, *rows: Cells) -> Path:
    """Each row is an annotation with its image."""
    named = ("id", "image_id", "bbox", "tokens_positive")
    images = [
        {"id": row["image_id"], **{name: row[name] for name in ("file_name", "caption")}}
        for row in rows
    ]
    annotations = [{name: row[name] for name in named} for row in rows]
    return write_lines(folder / "val.json", {"images": images, "annotations": annotations})


def references(folder: Path, *rows: Cells) -> Path:
    whole = {"images": [{"id": 7, "file_name": "a.png"}]}
    box = {"image_id": 7, "bbox": [0, 0, 5, 3]}
    write_lines(
        folder / "instances.json", whole | {"annotations": [{"id": n, **box} for n in (70, 80)]}
    )
    return write_lines(folder / "refs.json", list(rows))


def asked(*parts: Any) -> list[Cells]:
    return [{"role": "user", "content": list(parts)}]


SEEN, READ = {"type": "image", "image": "a.png"}, {"type": "text", "text": "A dog?"}

#: How a form is written, a good row of it, and what tells the second row apart.
FORMS = {
    "tsv": (
        tsv,
        dict(zip(MMBENCH_COLUMNS, ["1", "Q?", "", "a", "b", "", "", base64_image()], strict=True)),
        {"index": "2"},
    ),
    "mmstar": (
        table,
        {"index": 1, "question": "Q?", "image": PICTURE, "meta_info": ""},
        {"index": 2},
    ),
    "ai2d": (
        table,
        {"question": "Q?", "options": ["a", "b"], "answer": "0", "image": PICTURE},
        {"question": "Why?"},
    ),
    "ocrbench": (
        json_list,
        {"question": "Q?", "dataset_name": "svt", "image_path": "a.png"},
        {"question": "Why?"},
    ),
    "pope": (json_lines, {"question_id": 1, "image": "a.png", "text": "Q?"}, {"question_id": 2}),
    "prompts": (
        json_lines,
        {"id": 1, "image": "a.png", "prompt": "A dog?", "word": "dog", "box": [1, 2, 5, 3.5]},
        {"id": 2},
    ),
    "chat": (json_lines, {"id": 1, "messages": asked(SEEN, READ)}, {"id": 2}),
    "coco": (
        coco,
        {
            "id": 1,
            "image_id": 7,
            "file_name": "a.png",
            "caption": "the red cup",
            "bbox": [2, 1, 3, 2],
            "tokens_positive": [[8, 11]],
        },
        {"id": 2, "image_id": 8},
    ),
    "references": (
        references,
        {"ann_id": 70, "sentences": [{"sent_id": 1, "sent": "cup"}]},
        {"ann_id": 80, "sentences": [{"sent_id": 2, "sent": "cup"}]},
    ),
}
TWICE = "stands already in "
LIST = "expected a list of four numbers"
#: What is wrong with the second row: its cells, the column that is named, and the fault.
BAD = {
    "tsv": [
        ({"index": ""}, "index", "expected a whole number, received ''"),
        ({"index": "x"}, "index", "expected a whole number, received 'x'"),
        ({"index": "01"}, "index", "'1' " + TWICE),
        ({"question": ""}, "question", "expected text, received ''"),
        ({"image": ""}, "image", "expected the bytes of an image"),
        ({"image": "55"}, "image", "expected base64 or the index of another row, received '55'"),
        ({"image": "2"}, "image", "expected base64"),  # its own index
        ({"image": "*" * 80}, "image", "expected base64"),
        ({"image": "AAAA" * 20}, "image", "expected an image, received 60 bytes"),
    ],
    "mmstar": [
        ({"index": 1}, "index", "'1' " + TWICE),
        ({"question": None}, "question", "expected text, received None"),
        ({"image": {"bytes": None, "path": "/etc/passwd"}}, "image", "expected the bytes of an"),
    ],
    "ai2d": [
        ({"options": ["a", None]}, "options", "expected text, received None"),
        ({"options": None}, "options", "expected a list of options"),
    ],
    "ocrbench": [
        ({"image_path": "../x.png"}, "image_path", "the image path '../x.png' leaves the folder"),
        ({"question": ""}, "question", "expected text"),
        ({"dataset_name": ...}, None, "missing columns dataset_name; received question"),
    ],
    "pope": [
        ({"text": None}, "text", "expected text, received None"),
        ({"image": 5}, "image", "expected text, received 5"),
        ({"image": "b.png"}, "image", "the image file 'b.png' cannot be read"),
        ({"image": "../lines.jsonl"}, "image", "the image path '../lines.jsonl' leaves the folder"),
        ({"question_id": 1}, "question_id", "'1' " + TWICE),
        ({"text": ...}, None, "missing columns text; received question_id, image"),
    ],
    "prompts": [
        ({"prompt": 5}, "prompt", "expected text, received 5"),
        ({"prompt": ...}, None, "missing columns prompt; received id"),
        ({"id": ""}, "id", "expected text"),
        ({"id": "1"}, "id", "'1' " + TWICE),
        ({"image": "none.png"}, "image", "the image file 'none.png' cannot be read"),
        ({"image": "../x.png"}, "image", "the image path '../x.png' leaves the folder"),
        ({"image": ["a.png"]}, "image", "expected text"),
        ({"image": None, "images": "a.png"}, "images", "expected a list of image files"),
        ({"images": []}, "images", "expected a list of image files and no other image, received i"),
        ({"image": None, "images": ["../x.png"]}, "images", "the image path '../x.png' leaves"),
        ({"image": None, "images": [None]}, "images", "expected text"),
        (
            {"prompt": "<image><image>"},
            "prompt",
            "expected as many marks <image> as images (1), or none; received 2",
        ),
        (
            {"prompt": "<image>", "image": None, "images": ["a.png"] * 2},
            "prompt",
            "expected as many marks <image> as images (2), or none; received 1",
        ),
        ({"word": None}, "word", "expected word and box, received one of them"),
        ({"box": None}, "box", "expected word and box, received one of them"),
        ({"word": "cat"}, "word", "'cat' is not in the prompt after the image"),
        ({"word": "do"}, "word", "'do' is not in the prompt"),
        ({"word": 3}, "word", "expected text"),
        ({"prompt": "A dog: <image> Where?"}, "word", "'dog' is not in the prompt after the image"),
        ({"box": [1, 2, 7, 3]}, "box", "1,2,7,3 is no region of the image, which has 6 x 4 pixels"),
        ({"box": [5, 2, 5, 3]}, "box", "5,2,5,3 is no region"),
        ({"box": [-1, 2, 5, 3]}, "box", "-1,2,5,3 is no region"),
        ({"box": [1, 2, float("nan"), 3]}, "box", "1,2,nan,3 is no region"),
        ({"box": "1,2,3,4"}, "box", LIST),
        ({"box": [1, 2, 3]}, "box", LIST),
        ({"image": None}, "box", "expected one image to lie in, received 0"),
        ({"image": None, "images": ["a.png"] * 2}, "box", "expected one image to lie in, received"),
    ],
    "chat": [
        ({"messages": ...}, "prompt", "expected text, received None"),
        ({"messages": asked({"type": "image"}, READ)}, "messages", "expected a file in each image"),
        ({"messages": asked(SEEN, {"type": "image"})}, "messages", "expected a file in each image"),
        (
            {"messages": asked({"type": "image", "url": "none.png"})},
            "messages",
            "the image file 'none.png' cannot be read",
        ),
        (
            {"messages": asked({"type": "image", "path": "file:///etc/passwd"})},
            "messages",
            "the image path 'file:///etc/passwd' leaves the folder",
        ),
        (
            {"image": "b.png"},
            "image",
            "expected the images that messages name, ['a.png'], received",
        ),
        ({"system": "Be kind."}, "system", "expected no system, received 'Be kind.'"),
        ({"prompt": "A dog?"}, "messages", "expected one of prompt and messages, received prompt"),
    ],
    "coco": [
        ({"bbox": [2, 1, 6, 2]}, "box", "2,1,8,3 is no region of the image"),
        ({"bbox": [2, 1, 0, 2]}, "box", "2,1,2,3 is no region"),
        ({"bbox": [2, 1, 3]}, "bbox", LIST),
        ({"bbox": [True, 1, 3, 2]}, "bbox", LIST),
        ({"tokens_positive": [[9, 11]]}, "word", "'up' is not in the prompt"),
        ({"tokens_positive": [["a", 2]]}, "tokens_positive", "expected begin and end of the char"),
        ({"file_name": "../../a.png"}, "file_name", "the image path '../../a.png' leaves the f"),
        ({"file_name": "no.png"}, "file_name", "the image file 'no.png' cannot be read"),
        ({"id": None}, None, "expected text, received None"),
        ({"id": 1}, "id", "'1' " + TWICE),
    ],
    "references": [
        ({"ann_id": ann_id}, "ann_id", "expected the id of one annotation of instances.json")
        for ann_id in (None, 71, [70, 80], {})
    ],
}
UNITS = {"pope": "line", "prompts": "line", "chat": "line", "coco": "annotation"} | dict.fromkeys(
    ("ocrbench", "references"), "entry"
)


@pytest.fixture
def folder(tmp_path):
    for place in (".", "images", "OCRBench_Images"):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / "a.png").write_bytes(RED)
    return tmp_path


@pytest.mark.parametrize(
    ("form", "change", "column", "fault"),
    [(form, *case) for form, cases in BAD.items() for case in cases],
)
def test_a_bad_row_is_named_or_left_out(folder, form, change, column, fault):
    write, good, other = FORMS[form]
    second = {name: cell for name, cell in (good | other | change).items() if cell is not ...}
    path = write(folder, good, second)
    with pytest.raises(NormprobeError) as refusal:
        list(open_data(str(path)))
    unit = UNITS.get(form, "row")
    where = f"{path}, {unit} 2" + (f", column {column}" if column else "")
    assert refusal.value.problem.startswith(f"{where}: {fault}")
    assert fault.endswith(TWICE) == refusal.value.problem.endswith(f"{TWICE}{path}, {unit} 1")
    data = open_data(str(path), skip_bad=True)
    (sample,) = data
    assert sample.id == data.ids[0]
    (row,) = data.bad.skipped
    assert (row.file, row.row, row.column) == (str(path), 2, column)
    assert row.sample == next(iter(data.ids[1:]), None)
    assert row.reason.startswith(fault)


@pytest.mark.parametrize("form", FORMS)
def test_good_rows_of_every_form(folder, form):
    write, good, other = FORMS[form]
    data = open_data(str(write(folder, good, good | other)))
    first, second = data
    assert data.ids == [first.id, second.id]
    assert first.image.size == (6, 4)
    assert data.bad.skipped == []


@pytest.mark.parametrize(
    ("write", "rows", "message"),
    [
        (json_list, [], "official.json: the file holds no rows"),
        (json_list, [{"caption": "x"}], "one JSON list, but not the official file of seedbench2pl"),
        (json_list, ["What?"], "one JSON list, but not the official file of seedbench2plus, ocrb"),
        (json_list, [FORMS["ocrbench"][1]], r"expected the pictures in .*/OCRBench_Images, which"),
        (json_lines, [FORMS["pope"][1]], r"expected the pictures in .*/images, which is no folder"),
        (json_lines, [{"text": "x"}], "line 1: missing columns question_id, image; received text"),
        (json_lines, [{"caption": "x"}], "jsonl: missing columns prompt, image; received caption"),
        (coco, [FORMS["coco"][1] | {"caption": None}], "boxes without expressions"),
    ],
)
def test_a_file_of_no_form_is_refused(tmp_path, write, rows, message):
    with pytest.raises(NormprobeError, match=message):
        open_data(str(write(tmp_path, *rows)))


def test_an_entry_that_is_no_object_has_no_columns(folder):
    path = json_list(folder, FORMS["ocrbench"][1], "What?")
    with pytest.raises(
        NormprobeError, match=r"entry 2: missing columns question, dataset_name, im"
    ):
        open_data(str(path))


def test_references_alone_ask_for_instances(tmp_path):
    path = references(tmp_path, FORMS["references"][1])
    (tmp_path / "instances.json").unlink()
    with pytest.raises(NormprobeError, match="expected its boxes and pictures in "):
        open_data(str(path))


def test_what_two_rows_say_alike_has_a_number(folder):
    row = FORMS["ocrbench"][1]
    first, second, third = open_data(str(json_list(folder, row, row | {"question": "W?"}, row))).ids
    assert third == f"{first}-2"
    assert second not in (first, third)
    assert sorted(open_data(str(json_list(folder, row, row, row | {"question": "W?"}))).ids) == [
        *sorted([first, second, third])
    ]


def test_a_file_of_one_picture_is_told_what_to_pass(tmp_path):
    Image.new("RGB", (4, 3)).save(tmp_path / "a.png")
    with pytest.raises(NormprobeError, match=r"a\.png: expected a data file, received one picture"):
        open_data(str(tmp_path / "a.png"))
