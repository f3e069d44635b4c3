import io
from pathlib import Path

import pytest
from PIL import Image

from normprobe.data.batches import load_processor
from normprobe.specimen import SPECIMEN_DIR


@pytest.fixture(scope="session")
def specimen_processor():
    """Shared: tests that change it take ``processor`` instead."""
    return load_processor(str(SPECIMEN_DIR))


@pytest.fixture
def processor():
    return load_processor(str(SPECIMEN_DIR))


@pytest.fixture
def red_png() -> bytes:
    return encode(Image.new("RGB", (6, 4), "red"))


def encode(image: Image.Image, file_format: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def write_tsv(path: Path, rows: list[list[str]], encoding: str = "utf-8") -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding=encoding)
    return path


@pytest.fixture
def photo() -> Image.Image:
    return Image.effect_noise((90, 60), 80).convert("RGB")
