import pytest
from PIL import Image

from data.files import encode


@pytest.fixture
def red_png() -> bytes:
    return encode(Image.new("RGB", (6, 4), "red"))
