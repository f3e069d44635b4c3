import json

import pytest

from data.published import LETTER
from normprobe.data.data_set import open_data
from normprobe.errors import NormprobeError

WORD = {
    "dataset_name": "svt",
    "id": 21,
    "image_path": "svt/red.png",
    "question": "what is written in the image?",
    "answers": "red",
    "type": "Regular Text Recognition",
}
CHART = {
    "question_id": "0_0",
    "question": "Which?",
    "choice_a": "cat",
    "choice_B": "dog",
    "choice_C": "ox",
    "choice_D": "hen",
    "data_id": "text_rich/red.png",
    "answer": "A",
}


@pytest.fixture
def write(tmp_path, red_png):
    for folder in ("OCRBench_Images/svt", "text_rich"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "red.png").write_bytes(red_png)

    def written(content):
        path = tmp_path / "official.json"
        path.write_text(json.dumps(content, indent=4))
        return str(path)

    return written


def test_ocrbench(write):
    other = {**WORD, "question": "Which colour?"}
    first, second = open_data(write([WORD, other]))  # one id, as published
    assert first.id.startswith("ocrbench/")
    assert first.id != second.id
    assert first.prompt == "what is written in the image?"
    assert first.image.getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize("wrap", [list, lambda rows: {"questions": rows, "question_type": {}}])
def test_seedbench2plus(write, wrap):
    (sample,) = open_data(write(wrap([CHART])))
    assert sample.id.startswith("seedbench2plus/")
    assert sample.prompt == f"Which?\nA. cat\nB. dog\nC. ox\nD. hen\n{LETTER}"
    assert sample.image.size == (6, 4)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({**WORD, "image_path": "../x.png"}, "entry 2, column image_path: .* leaves the folder"),
        ({**WORD, "question": ""}, "entry 2, column question: expected text"),
        ({"question": "What?"}, "entry 2: missing columns dataset_name, image_path"),
        ("What?", "entry 2: missing columns question"),
    ],
)
def test_a_bad_entry_is_named_or_skipped(write, bad, message):
    with pytest.raises(NormprobeError, match=message):
        list(open_data(write([WORD, bad])))
    assert len(list(open_data(write([WORD, bad]), skip_bad=True))) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "holds no rows"),
        ([{"caption": "x"}], "one JSON list, but not the official file of seedbench2plus, ocr"),
    ],
)
def test_other_lists_are_refused(write, content, message):
    with pytest.raises(NormprobeError, match=message):
        open_data(write(content))


def test_without_pictures(tmp_path):
    path = tmp_path / "OCRBench.json"
    path.write_text(json.dumps([WORD]))
    with pytest.raises(NormprobeError, match=r"expected the pictures in .*OCRBench_Images"):
        open_data(str(path))
