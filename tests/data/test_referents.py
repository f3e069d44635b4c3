"""A word and the box around what it means, in JSON lines of one's own."""

import json

import pytest
from PIL import Image

from normprobe import NormprobeError
from normprobe.data.data_set import open_data
from normprobe.data.sample import is_region, spans_of_word

ROW = {"image": "a.png", "prompt": "Where is the dog?", "word": "dog", "box": [1, 2, 30, 20.5]}


@pytest.fixture
def data_of(tmp_path):
    for name in ("a.png", "b.png"):
        Image.new("RGB", (32, 24)).save(tmp_path / name)

    def write(row, **options):
        path = tmp_path / "rows.jsonl"
        path.write_text(json.dumps(row) + "\n" + json.dumps({**ROW, "id": "good"}))
        return open_data(str(path), **options)

    return write


def test_a_row_says_what_a_word_means(data_of):
    first, _ = data_of(ROW)
    assert (first.referent.word, first.referent.box) == ("dog", (1, 2, 30, 20.5))


def test_a_row_need_not(data_of):
    first, _ = data_of({"image": "a.png", "prompt": "Where?"})
    assert first.referent is None


@pytest.mark.parametrize(
    ("change", "column", "fault"),
    [
        ({"word": None}, "word", "expected word and box, received one of them"),
        ({"box": None}, "box", "expected word and box, received one of them"),
        ({"word": "cat"}, "word", "'cat' is not in the prompt after the image"),
        ({"word": "do"}, "word", "'do' is not in the prompt"),
        ({"word": 3}, "word", "expected text"),
        ({"prompt": "A dog: <image> Where?"}, "word", "'dog' is not in the prompt after the image"),
        ({"box": [1, 2, 33, 20]}, "box", "1,2,33,20 is no region of the image, which has 32 x 24"),
        ({"box": [5, 2, 5, 20]}, "box", "is no region"),
        ({"box": [-1, 2, 5, 20]}, "box", "is no region"),
        ({"box": [1, 2, float("nan"), 20]}, "box", "is no region"),
        ({"box": "1,2,3,4"}, "box", "expected a list of four numbers"),
        ({"box": [1, 2, 3]}, "box", "expected a list of four numbers"),
        ({"image": None}, "box", "expected one image to lie in, received 0"),
        ({"image": None, "images": ["a.png", "b.png"]}, "box", "one image to lie in, received 2"),
    ],
)
def test_what_is_not_there_is_a_bad_row(data_of, change, column, fault):
    with pytest.raises(NormprobeError) as raised:
        list(data_of(ROW | change))
    assert fault in raised.value.problem
    assert f"line 1, column {column}" in raised.value.problem
    skipping = data_of(ROW | change, skip_bad=True)
    assert [sample.id for sample in skipping] == ["prompts/good"]
    assert len(skipping.bad.skipped) == 1


def test_a_mark_before_the_word(data_of):
    first, _ = data_of(ROW | {"prompt": "See <image> and the Dog."})
    assert first.referent.word == "dog"


def test_spans_are_whole_words():
    assert spans_of_word("cat", "A cat, a catfish, the CAT") == [(2, 5), (22, 25)]
    assert spans_of_word(" red cup ", "the red cup") == [(4, 11)]
    assert spans_of_word(" ", "a b") == []


def test_a_region_lies_in_the_picture():
    assert is_region((0, 0, 32, 24), (32, 24))
    assert not is_region((0, 0, 32, 24.1), (32, 24))
    assert not is_region((0, 3, 32, 3), (32, 24))
