import json

import pytest

from normprobe.data.local import read_file
from normprobe.data.rows import BadRows
from normprobe.errors import NormprobeError

GOOD = {"question_id": 1, "image": "red.png", "text": "Is there a cat?", "label": "no"}


@pytest.fixture
def read(tmp_path, red_png):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "red.png").write_bytes(red_png)

    def read_rows(*rows):
        path = tmp_path / "pope.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read_file(path, BadRows()).questions

    return read_rows


def test_question(read):
    (question,) = read(GOOD)
    prompt, (image,), _ = question.load()
    assert question.id == "pope/1"
    assert prompt == "Is there a cat?\nAnswer the question using a single word or phrase."
    assert image.size == (6, 4)


def test_duplicate_id_is_refused(read):
    with pytest.raises(NormprobeError, match="line 2, column question_id: '1' stands already"):
        read(GOOD, GOOD)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"text": None}, "line 2, column text: expected text, received None"),
        ({"image": 5}, "line 2, column image: expected text, received 5"),
        ({"image": "blue.png"}, "line 2, column image: the image file 'blue.png'"),
        ({"image": "../pope.json"}, "line 2, column image: .* leaves the folder"),
    ],
)
def test_bad_cell_is_refused_when_read(read, cells, message):
    good, bad = read(GOOD, GOOD | {"question_id": 2} | cells)
    good.load()
    with pytest.raises(NormprobeError, match=message):
        bad.load()


def test_file_without_images_folder_is_refused(tmp_path):
    path = tmp_path / "pope.jsonl"
    path.write_text(json.dumps(GOOD))
    with pytest.raises(NormprobeError, match=r"expected the pictures in .*images"):
        read_file(path, BadRows())
