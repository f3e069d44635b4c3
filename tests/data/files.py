"""Encoded images and tab-separated files for tests."""

import io
from pathlib import Path

from PIL import Image


def encode(image: Image.Image, file_format: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def write_tsv(path: Path, rows: list[list[str]], encoding: str = "utf-8") -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding=encoding)
    return path
