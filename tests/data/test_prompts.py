import json

import pytest

from normprobe.data.data_set import open_data
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


@pytest.fixture
def lines(tmp_path, red_png):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/red.png").write_bytes(red_png)

    def write(*rows):
        path = tmp_path / "mine.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return open_data(str(path))

    return write


def test_image_and_prompt(lines):
    data = lines(
        {"id": "a", "image": "photos/red.png", "prompt": "Is it {red}?"},
        {"prompt": "And now?", "image": None},
        {"prompt": "No image."},
    )
    first, second, third = data
    assert (first.id, first.prompt, first.image.size) == ("prompts/a", "Is it {red}?", (6, 4))
    assert second.image is third.image is None
    assert data.has_images


def test_several_images(lines):
    rows = [
        {"id": "marked", "images": ["photos/red.png"] * 2, "prompt": "Is <image> like <image>?"},
        {"id": "before", "images": ["photos/red.png"] * 2, "prompt": "Alike?"},
        {"id": "one", "image": "photos/red.png", "prompt": "What is <image>?"},
        {"id": "text", "images": [], "prompt": "What does <image> mean?"},
    ]
    marked, before, one, text = lines(*rows)
    assert [len(sample.images) for sample in (marked, before, one, text)] == [2, 2, 1, 0]
    assert marked.pieces == ["Is ", marked.images[0], " like ", marked.images[1], "?"]
    assert before.pieces == [*before.images, "Alike?"]
    assert one.pieces == ["What is ", one.image, "?"]
    assert text.pieces == ["What does <image> mean?"]
    assert [question.has_images for question in (lines(rows[0]), lines(rows[3]))] == [True, False]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": 5}, "line 1, column prompt: expected text, received 5"),
        ({"prompt": "x", "image": "none.png"}, "line 1, column image: the image file 'none.png'"),
        ({"prompt": "x", "image": "../x.png"}, "line 1, column image: .* leaves the folder"),
        ({"prompt": "x", "image": ["a.png"]}, "line 1, column image: expected text"),
        ({"prompt": "x", "images": "a.png"}, "line 1, column images: expected a list"),
        ({"prompt": "x", "image": "a.png", "images": []}, "images: .* received image as well"),
        ({"prompt": "x", "images": ["../x.png"]}, "line 1, column images: .* leaves the folder"),
        ({"prompt": "x", "images": [None]}, "line 1, column images: expected text"),
        (
            {"prompt": "<image><image>", "image": "a.png"},
            r"mine.jsonl, line 1, column prompt: expected as many marks <image> as images \(1\), "
            "or none; received 2",
        ),
        (
            {"prompt": "<image>", "images": ["a.png"] * 2},
            r"as many marks <image> as images \(2\), or none; received 1",
        ),
        ({"prompt": "x", "id": ""}, "line 1, column id: expected text"),
        ({"text": "x"}, "missing columns question_id, image; received text"),
        ({"caption": "x"}, "missing columns prompt, image; received caption"),
    ],
)
def test_bad_lines_are_refused(lines, row, message):
    with pytest.raises(NormprobeError, match=message):
        list(lines(row))
