"""Prompts and pictures of one's own, and words with the boxes of what they mean."""

import json
import os
import re

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from data.published import BLUE, RED, encode, write_lines
from normprobe.data.data_set import open_data
from normprobe.data.sample import Answer, Turn
from normprobe.errors import NormprobeError


def test_bundled_prompts_are_text_alone():
    data = open_data("text")
    samples = list(data)
    assert (data.name, data.has_images, len(samples)) == ("text", False, 40)
    assert all(sample.image is None and sample.image_hash is None for sample in samples)
    assert len({sample.prompt for sample in samples}) == len(set(data.ids)) == 40


@pytest.mark.parametrize("spec", ["{}", "text:{}"])
def test_a_text_file_holds_a_prompt_a_line(tmp_path, spec):
    path = tmp_path / "mine.txt"
    path.write_text("\ufeffWhy?\r\n\n  What is a café? \nWhy?\n", encoding="utf-8")
    data = open_data(spec.format(path))
    assert data.name == "mine"
    assert [sample.prompt for sample in data] == ["Why?", "What is a café?", "Why?"]
    assert data.ids[2] == f"{data.ids[0]}-2"
    path.write_text("What is a café?\nWhy?\nWhy?\n", encoding="utf-8")
    assert sorted(open_data(str(path)).ids) == sorted(data.ids)


def test_text_that_is_not_there_or_empty(tmp_path):
    with pytest.raises(NormprobeError, match="cannot be read"):
        open_data(f"text:{tmp_path}/none.txt")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(NormprobeError, match="holds no rows"):
        open_data(f"text:{tmp_path}/empty.txt")


@pytest.mark.parametrize("form", ["jsonl", "json", "csv"])
def test_a_prompt_may_be_called_a_question(tmp_path, red_png, form):
    (tmp_path / "red.png").write_bytes(red_png)
    rows = [
        {"image": "red.png", "question": "Is it red, or not?"},
        {"image": "", "question": "Why?"},
    ]
    path = tmp_path / f"mine.{form}"
    texts = {
        "jsonl": "\n".join(map(json.dumps, rows)),
        "json": json.dumps(rows),
        "csv": 'image,question\nred.png,"Is it red, or not?"\n,Why?\n',
    }
    path.write_text(texts[form], encoding="utf-8")
    first, second = open_data(str(path))
    assert (first.prompt, second.prompt) == ("Is it red, or not?", "Why?")
    assert first.image.size == Image.open(tmp_path / "red.png").size and second.image is None


def test_a_csv_names_its_columns_as_a_tsv_does(tmp_path, red_png):
    (tmp_path / "red.png").write_bytes(red_png)
    path = tmp_path / "mine.csv"
    path.write_text("id,image,prompt\na,red.png,Red?\nb,red.png,Blue?,odd\n", encoding="utf-8")
    with pytest.raises(NormprobeError, match="expected 3 columns, received 4"):
        list(open_data(str(path)))
    path.write_text("id,image,prompt\na,red.png,Red?\n", encoding="utf-8")
    (sample,) = open_data(str(path))
    assert (sample.id, sample.prompt) == ("prompts/a", "Red?")


def test_prompts_with_images_or_without(tmp_path, red_png):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/red.png").write_bytes(red_png)
    red = "photos/red.png"
    rows = [
        {"id": "a", "image": red, "prompt": "Is it {red}?"},
        {"id": "marked", "images": [red] * 2, "prompt": "Is <image> like <image>?"},
        {"id": "before", "images": [red] * 2, "prompt": "Alike?"},
        {"id": "one", "image": red, "prompt": "What is <image>?"},
        {"id": "word", "image": red, "prompt": "See <image> and the Dog.", "word": "dog"}
        | {"box": [1, 2, 5, 3.5]},
        {"id": "text", "images": [], "prompt": "What does <image> mean?"},
        {"prompt": "And now?", "image": None},
        {"prompt": "nan"},
    ]
    data = open_data(str(write_lines(tmp_path / "mine.jsonl", *rows)))
    samples = list(data)
    assert [len(sample.images) for sample in samples] == [1, 2, 2, 1, 1, 0, 0, 0]
    assert [sample.prompt for sample in samples] == [row["prompt"] for row in rows]
    first, marked, before, one, word, text, *others = samples
    assert (first.id, first.image.size) == ("prompts/a", (6, 4))
    assert marked.pieces == ["Is ", marked.images[0], " like ", marked.images[1], "?"]
    assert before.pieces == [*before.images, "Alike?"]
    assert one.pieces == ["What is ", one.image, "?"]
    assert text.pieces == ["What does <image> mean?"]
    assert (word.referent.word, word.referent.box) == ("dog", (1, 2, 5, 3.5))
    assert first.referent is None
    assert len({sample.id for sample in others}) == 2
    for row, has_images in ((rows[1], True), (rows[5], False)):
        path = write_lines(tmp_path / "one.jsonl", row)
        assert open_data(str(path)).has_images is has_images


@pytest.mark.parametrize(
    ("cells", "answer"),
    [
        ({"answer": " a cup "}, Answer("a cup")),
        ({"answer": 3}, Answer("3")),
        ({"answer": "B", "options": ["A", "B"]}, Answer("B", ("A", "B"))),
        ({"answer": 2, "options": [1, 2]}, Answer("2", ("1", "2"))),
        (
            {"answer": "cup", "options": ["A", "B"]},
            Answer("cup", ("A", "B")),
        ),  # refused where asked
        ({"answer": "B", "options": "A, B"}, Answer("B")),
        ({"answer": None}, None),
        ({}, None),
        ({"answer": ["cup", "mug"]}, None),
        ({"options": ["A", "B"]}, None),
    ],
)
def test_answers_of_ones_own(tmp_path, cells, answer):
    path = write_lines(tmp_path / "mine.jsonl", {"prompt": "What is it?"} | cells)
    (sample,) = open_data(str(path))
    assert sample.answer == answer


@pytest.mark.parametrize("cell", ["", " ", "\t\n"])
def test_a_blank_answer_is_no_answer_that_is_unknown(tmp_path, cell):
    rows = [{"prompt": "What is it?", "answer": "a cup"}, {"prompt": "And this?", "answer": cell}]
    path = write_lines(tmp_path / "mine.jsonl", *rows)
    told = f"{path}, line 2, column answer: expected an answer, received {cell!r}"
    with pytest.raises(NormprobeError, match=f"^{re.escape(told)}"):
        list(open_data(str(path)))


@pytest.mark.parametrize(("form", "between"), [("csv", ","), ("tsv", "\t")])
def test_an_empty_cell_of_a_table_is_an_answer_that_is_unknown(tmp_path, form, between):
    rows = [["prompt", "answer"], ["What is it?", " a cup"], ["And this?", ""], ["Why?", "  "]]
    path = tmp_path / f"mine.{form}"
    path.write_text("\n".join(between.join(row) for row in rows), encoding="utf-8")
    samples = iter(open_data(str(path)))
    assert [next(samples).answer for _ in range(2)] == [Answer("a cup"), None]
    with pytest.raises(NormprobeError, match="row 3, column answer: expected an answer, received"):
        next(samples)


def said(*texts, roles=("user", "assistant"), role="role", text="content"):
    return [{role: roles[n % 2], text: said} for n, said in enumerate(texts)]


@pytest.mark.parametrize(
    "cells",
    [
        {"messages": said("<image>Is it?", "No.", "And <image>?")},
        {"conversations": said("<image>Is it?", "No.", "And <image>?", roles=("human", "gpt"),
                               role="from", text="value")},
        {"messages": said([{"type": "image"}, {"type": "text", "text": "Is it?"}], "No.",
                          [{"type": "text", "text": "And "}, {"type": "image", "text": None},
                           {"type": "text", "text": "?"}])},
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_conversations(tmp_path, red_png, cells, form):
    """As chats and as LLaVA's training data have them, a line each or one list."""
    (tmp_path / "red.png").write_bytes(red_png)
    row = {"id": "a", "images": ["red.png"] * 2} | cells
    path = tmp_path / f"mine.{form}"
    path.write_text(json.dumps([row] if form == "json" else row))
    (sample,) = open_data(str(path))
    assert sample.earlier == (Turn("<image>Is it?", "No."),)
    assert (sample.prompt, sample.answer, len(sample.images)) == ("And <image>?", None, 2)
    assert sample.is_marked


def write_form(folder, form, row):
    """A line, or a list of one entry."""
    path = folder / f"mine.{form}"
    path.write_text(json.dumps([row] if form == "json" else row))
    return path


@pytest.fixture
def pictures(tmp_path):
    """Two that differ, by their colour."""
    (tmp_path / "red.png").write_bytes(RED)
    (tmp_path / "blue 1.png").write_bytes(BLUE)
    return tmp_path


def text(said):
    return {"type": "text", "text": said}


@pytest.mark.parametrize("form", ["jsonl", "json"])
@pytest.mark.parametrize(
    "part",
    [
        lambda folder, name: {"type": "image", "image": name},
        lambda folder, name: {"type": "image", "path": name, "text": None},
        lambda folder, name: {"type": "image", "url": (folder / name).as_uri(), "image": ""},
        lambda folder, name: {"image": f"file://{folder / name}"},
    ],
    ids=["image", "path", "url", "no type"],
)
def test_parts_name_their_pictures(pictures, part, form):
    """In their order, in whichever turn they are."""
    red, blue = part(pictures, "red.png"), part(pictures, "blue 1.png")
    messages = said([blue, red, text("Alike?")], "No.", [text("And "), blue, text("?")])
    data = open_data(str(write_form(pictures, form, {"messages": messages})))
    (sample,) = data
    colours = [image.getpixel((0, 0)) for image in sample.images]
    assert colours == [(0, 0, 255), (255, 0, 0), (0, 0, 255)]
    first, last = sample.turns
    assert first.pieces == [*sample.images[:2], "Alike?"]
    assert last.pieces == ["And ", sample.images[2], "?"]
    assert data.has_images


def test_parts_name_clips_and_sounds(pictures):
    np.save(pictures / "a.npy", np.ones(9, np.float32))
    parts = [
        {"type": "video", "video": ["red.png", "blue 1.png"]},
        {"type": "audio", "path": "a.npy"},
        text("What is it?"),
    ]
    row = {"messages": said(parts), "fps": 2, "rate": 8000}
    (sample,) = open_data(str(write_lines(pictures / "mine.jsonl", row)))
    assert [len(video.frames) for video in sample.videos] == [2]
    assert [len(audio.samples) for audio in sample.audios] == [9]
    assert sample.pieces == [*sample.videos, *sample.audios, "What is it?"]


def test_parts_of_text_hold_no_picture(tmp_path):
    row = {"messages": said([text("Is "), text("it?"), text("")])}
    data = open_data(str(write_lines(tmp_path / "mine.jsonl", row)))
    (sample,) = data
    assert (sample.prompt, data.has_images) == ("Is it?", False)


RED_PART, BLUE_PART = ({"type": "image", "image": name} for name in ("red.png", "blue 1.png"))


@pytest.mark.parametrize("beside", [{"image": "red.png"}, {"images": ["red.png"]}])
def test_files_named_twice_are_named_alike(pictures, beside):
    path = pictures / "mine.jsonl"
    (sample,) = open_data(str(write_lines(path, {"messages": said([RED_PART])} | beside)))
    assert len(sample.images) == 1
    column = next(iter(beside))
    with pytest.raises(NormprobeError) as refusal:
        list(open_data(str(write_lines(path, {"messages": said([BLUE_PART])} | beside))))
    assert refusal.value.problem == (
        f"{path}, line 1, column {column}: expected the images that messages name, "
        "['blue 1.png'], received ['red.png']"
    )


@pytest.mark.parametrize("url", ["http://example.org/a.png", "https://example.org/a.png"])
@pytest.mark.parametrize("in_parts", [False, True])
def test_nothing_is_downloaded(tmp_path, url, in_parts):
    part = {"type": "image", "url": url}
    row = {"messages": said([part])} if in_parts else {"image": url, "prompt": "Is it?"}
    column = "messages" if in_parts else "image"
    with pytest.raises(NormprobeError) as refusal:
        list(open_data(str(write_lines(tmp_path / "mine.jsonl", row))))
    assert f"column {column}: the image file '{url}' cannot be read" in refusal.value.problem


def test_json_lines_of_conversations_about_a_picture_are_no_benchmark(pictures):
    """``image`` is a name of POPE's as well."""
    row = {"id": "a", "image": "red.png", "conversations": said("<image>Is it?", "No.")}
    (sample,) = open_data(str(write_lines(pictures / "mine.jsonl", row)))
    assert (sample.id, len(sample.images), sample.answer) == ("prompts/a", 1, Answer("No."))


def test_a_list_of_prompts_is_read_as_lines_are(pictures):
    row = {"image": "red.png", "prompt": "What?"}
    samples = [
        next(iter(open_data(str(write_form(pictures, form, row))))) for form in ("jsonl", "json")
    ]
    assert samples[0] == samples[1]


@pytest.mark.parametrize(
    ("cells", "column", "fault"),
    [
        ({"prompt": "Is it?"}, "messages", "one of prompt and messages, received prompt and mess"),
        ({"conversations": said("A?")}, "messages", "received conversations and messages"),
        ({"system": "Be kind."}, "system", "expected no system, received 'Be kind.'"),
        ({"tools": [{"name": "f"}]}, "tools", "expected no tools, received [{'name': 'f'}]"),
        ({"functions": [{"name": "f"}]}, "functions", "expected no functions"),
        ({"history": [["A?", "B."]]}, "history", "expected no history"),
        ({"documents": ["A."]}, "documents", "expected no documents"),
    ],
)
def test_what_would_change_the_prompt_is_not_passed_over(tmp_path, cells, column, fault):
    path = tmp_path / "mine.jsonl"
    row = {"messages": said("Is it?")} | cells
    with pytest.raises(NormprobeError) as refusal:
        list(open_data(str(write_lines(path, row))))
    assert f"{path}, line 1, column {column}: expected " in refusal.value.problem
    assert fault in refusal.value.problem
    empty = row | {name: "" if column == "messages" else type(cells[name])() for name in cells}
    assert len(list(open_data(str(write_lines(path, empty))))) == 1


def test_a_prompt_has_no_system_of_its_own(tmp_path):
    row = {"prompt": "Is it?", "system": "Be kind."}
    with pytest.raises(NormprobeError, match="expected no system") as refusal:
        list(open_data(str(write_lines(tmp_path / "mine.jsonl", row))))
    assert "--system" in refusal.value.remedy


def test_the_last_reply_is_the_answer(tmp_path):
    path = write_lines(
        tmp_path / "mine.jsonl", {"messages": said("Is it?", "No.")}, {"prompt": "?"}
    )
    first, other = open_data(str(path))
    assert (first.earlier, first.prompt, first.answer) == ((), "Is it?", Answer("No."))
    assert (other.prompt, other.answer) == ("?", None)


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        (said("Be kind.", "Is it?", roles=("system", "user")), "received 'system, user'"),
        (said("Is it?", "Is it?", roles=("user", "user")), "user and assistant in turns"),
        ([], r"received '\[\]'"),
        ("Is it?", "in turns"),
        (said("Is it?", None), "expected text, received None"),
        (said("Is it?", [7]), "parts of a text each, or of one image, video or audio, received 7"),
        (said("Is it?", [{"type": "text", "text": 7}]), "expected text, received 7"),
        (said("See <image>"), "column messages: expected as many marks <image>"),
        (said([RED_PART, text("See <image>")]), "expected the images that messages name"),
        (said([{"type": "image"}]), r"as many marks <image> as images \(2\), or none; received 1"),
        (said([{"type": "video"}]), "expected a file in each video part, received 0 of 1"),
        (said("Is it?", [RED_PART]), "expected text of the assistant, received a part of type ima"),
        (said([{**RED_PART, "min_pixels": 9}]), "type 'image' with 'image, min_pixels'"),
        (said([{"image": "red.png", "path": "red.png"}]), "type 'image' with 'image, path'"),
        (said([{"type": "text", "image": "red.png"}]), "type 'text' with 'image'"),
        (said([{"type": "image_url", "image_url": {"url": "a.png"}}]), "type 'image_url' with"),
        (said([{"type": [], "image": "a"}]), r"type \[\] with 'image'"),
        (said([{}]), r"received \{\}"),
        (
            [*said("Is it?"), {"role": "assistant", "content": None, "tool_calls": [{"id": 1}]}],
            r"expected no tool_calls, received \[\{'id': 1\}\]",
        ),
        (
            [*said("Is it?"), {"role": "tool", "content": None}],
            "user and assistant in turns, received 'user, tool'",
        ),
        ([{"role": "user", "content": "Is it?", "images": ["a"]}], r"no images, received \['a'\]"),
    ],
)
def test_messages_that_are_no_conversation(tmp_path, red_png, messages, fault):
    (tmp_path / "red.png").write_bytes(red_png)
    row = {"images": ["red.png"] * 2, "messages": messages}
    data = open_data(str(write_lines(tmp_path / "mine.jsonl", row)))
    with pytest.raises(NormprobeError, match=fault):
        list(data)


def test_bundled_conversations():
    samples = list(open_data("turns"))
    assert len(samples) == 40
    assert {(len(s.earlier), len(s.images), s.is_marked) for s in samples} == {(2, 3, True)}
    assert all(s.answer is not None for s in samples)
    pictures = [hashed for sample in samples for hashed in sample.image_hashes]
    assert len(set(pictures)) == len(pictures)


@pytest.fixture
def photo() -> Image.Image:
    return Image.effect_noise((90, 60), 80).convert("RGB")


def test_a_folder_of_images(tmp_path, photo):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/b.JPG").write_bytes(encode(photo, "JPEG"))
    (tmp_path / "a.png").write_bytes(encode(photo))
    (tmp_path / "notes.txt").write_text("not a prompt")
    for prompt in (None, "What is it?"):
        data = open_data(str(tmp_path), prompt=prompt)
        assert data.ids == ["images/a.png", "images/deep/b.JPG"]
        expected = prompt or "Describe the image."
        assert {sample.prompt for sample in data} == {expected}
        assert data.provenance["sources"][0]["prompt"] == expected
    with pytest.raises(NormprobeError, match="--prompt: expected as many marks <image> as images"):
        open_data(str(tmp_path), prompt="<image> or <image>?")
    with pytest.raises(NormprobeError, match="--prompt: sample has prompts of its own"):
        open_data("sample", prompt="What?")


def test_a_folder_of_images_stays_inside(tmp_path, photo):
    folder = tmp_path / "photos"
    folder.mkdir()
    (tmp_path / "out.png").write_bytes(encode(photo))
    (folder / "link.png").symlink_to(tmp_path / "out.png")
    os.mkfifo(folder / "pipe.png")
    (folder / "vector.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n%%EOF\n")
    data = open_data(str(folder), skip_bad=True)
    assert list(data) == []
    reasons = {row.sample: row.reason for row in data.bad.skipped}
    assert "leaves the folder" in reasons["images/link.png"]
    assert "no plain file" in reasons["images/pipe.png"]
    assert "no known image format" in reasons["images/vector.png"]


def test_a_table_of_prompts_needs_no_ids(tmp_path):
    path = tmp_path / "mine.parquet"
    columns = {"prompt": ["Why?", "Why?"], "more": [{"bytes": b"x"}, {"bytes": b"y"}]}
    parquet.write_table(pa.table(columns), path)
    first, second = open_data(str(path))
    assert first.prompt == second.prompt == "Why?"
    assert first.id != second.id
    assert not second.id.endswith("-2")  # their content differs
