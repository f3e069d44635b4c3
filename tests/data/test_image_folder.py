import os

import pytest
from PIL import Image

from data.files import encode
from normprobe.data.data_set import open_data


@pytest.fixture
def photo() -> Image.Image:
    return Image.effect_noise((90, 60), 80).convert("RGB")


def test_a_folder_of_images(tmp_path, photo):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/b.JPG").write_bytes(encode(photo, "JPEG"))
    (tmp_path / "a.png").write_bytes(encode(photo))
    (tmp_path / "notes.txt").write_text("not a prompt")
    data = open_data(str(tmp_path))
    assert data.ids == ["images/a.png", "images/deep/b.JPG"]
    assert {sample.prompt for sample in data} == {"Describe the image."}
    assert data.provenance["sources"][0]["prompt"] == "Describe the image."


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
