"""Prompts and pictures of one's own, and words with the boxes of what they mean."""

import json
import os

import pytest
from PIL import Image

from data.published import encode, write_lines
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
        ({"answer": "cup", "options": ["A", "B"]}, Answer("cup")),  # it is none of them
        ({"answer": "B", "options": "A, B"}, Answer("B")),
        ({"answer": ""}, None),
        ({"answer": ["cup", "mug"]}, None),
        ({"options": ["A", "B"]}, None),
    ],
)
def test_answers_of_ones_own(tmp_path, cells, answer):
    path = write_lines(tmp_path / "mine.jsonl", {"prompt": "What is it?"} | cells)
    (sample,) = open_data(str(path))
    assert sample.answer == answer


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
        (said("Is it?", [7]), r"expected text, received \[7\]"),
        (said("See <image>"), "as many marks <image>"),
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
