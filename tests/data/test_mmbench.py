import base64

import pytest
from PIL import Image

from data.conftest import encode, write_tsv
from normprobe.data.bad_rows import BadRows
from normprobe.data.local import read_file
from normprobe.data.mmbench import COLUMNS
from normprobe.errors import NormprobeError

# Above the 64 characters up to which a cell is taken for a reference.
RED, BLUE = (
    base64.b64encode(encode(Image.new("RGB", (6, 4), colour))).decode()
    for colour in ("red", "blue")
)


def mmbench_row(index, image=RED, question="What?", hint="", options=("a", "b", "", "")):
    return [str(index), question, hint, *options, image]


def read(tmp_path, *rows):
    path = write_tsv(tmp_path / "mmbench.tsv", [list(COLUMNS), *rows])
    return read_file(path, BadRows()).questions


def prompt_of(tmp_path, **cells):
    return read(tmp_path, mmbench_row(1, **cells))[0].load()[0]


def test_wording(tmp_path):
    assert prompt_of(
        tmp_path,
        question="Which animal?",
        hint="Look closely.",
        options=("cat", "dog", "ox", "hen"),
    ) == (
        "Look closely.\nWhich animal?\nA. cat\nB. dog\nC. ox\nD. hen\n"
        "Answer with the option's letter from the given choices directly."
    )


@pytest.mark.parametrize("empty", ["", "nan"])
def test_wording_without_hint_and_with_two_options(tmp_path, empty):
    assert prompt_of(tmp_path, hint=empty, options=("cat", "dog", empty, empty)) == (
        "What?\nA. cat\nB. dog\nAnswer with the option's letter from the given choices directly."
    )


def test_options_that_pandas_would_drop(tmp_path):
    assert prompt_of(tmp_path, options=("None", "NA", "null", "N/A")) == (
        "What?\nA. None\nB. NA\nC. null\nD. N/A\n"
        "Answer with the option's letter from the given choices directly."
    )


def test_braces_in_a_cell_stay(tmp_path):
    assert prompt_of(tmp_path, question="What is {A}?").startswith("What is {A}?\nA. a\n")


def test_circular_copies_are_no_questions(tmp_path):
    questions = read(
        tmp_path, mmbench_row(7), mmbench_row(1_000_007, image="7"), mmbench_row(999_999)
    )
    assert [question.id for question in questions] == ["mmbench/7", "mmbench/999999"]


def test_short_image_cell_names_the_row_with_the_image(tmp_path):
    first, second = read(
        tmp_path, mmbench_row(1, image="1000002"), mmbench_row(2), mmbench_row(1000002, image=BLUE)
    )
    assert first.load()[1].getpixel((0, 0)) == (0, 0, 255)
    assert second.load()[1].getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([mmbench_row(1), mmbench_row(1)], "row 2, column index: '1' stands already in .*row 1"),
        ([mmbench_row("x")], "row 1, column index: expected a whole number, received 'x'"),
        ([mmbench_row("")], "row 1, column index: expected a whole number"),
    ],
)
def test_bad_index_is_refused_at_once(tmp_path, rows, message):
    with pytest.raises(NormprobeError, match=message):
        read(tmp_path, *rows)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"question": ""}, "row 2, column question: expected text"),
        ({"image": ""}, "row 2, column image: expected the bytes of an image"),
        ({"image": "55"}, "row 2, column image: .* index of another row, received '55'"),
        ({"image": "2"}, "row 2, column image: expected"),  # itself
        ({"image": "*" * 80}, "row 2, column image: expected base64"),
        ({"image": "AAAA" * 20}, "row 2, column image: expected an image, received 60 bytes"),
    ],
)
def test_bad_cell_is_refused_when_read(tmp_path, cells, message):
    good, bad = read(tmp_path, mmbench_row(1), mmbench_row(2, **cells))
    good.load()
    with pytest.raises(NormprobeError, match=message):
        bad.load()
