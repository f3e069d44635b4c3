"""Encoded bytes to an upright RGB picture, or a refusal that says where the bytes came from.

Pillow opens a file by its header alone, clips 16-bit samples, drops transparency and leaves EXIF
rotation to the caller. Each of these changes what a vision encoder sees without any error, so all
images pass through ``decode_image``.
"""

import base64
import hashlib
import io
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from PIL import Image, ImageOps, UnidentifiedImageError

from normprobe.data.rows import BadRow, Place
from normprobe.errors import first_line

#: What is decoded. Pillow reads more, some of it (EPS) by running another program.
FORMATS = ("PNG", "JPEG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "PPM", "JPEG2000")

_AT_ONCE = 2**20  # samples that are scaled at a time, in float64
_REPLACE = "replace the image with a complete PNG, JPEG or WebP file"


def decode_image(data: bytes, where: Place | str) -> Image.Image:
    """Decode every pixel of an image; of an animation, the first frame."""
    try:
        with warnings.catch_warnings():
            # Pillow warns of damaged metadata, and also where an image exceeds its limit on pixels:
            # that limit is checked below.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=_formats()) as encoded:
                _refuse_bomb(encoded.size)
                encoded.load()  # open() reads the header; only this notices a missing end
                image = as_shown(encoded)
    except Image.DecompressionBombError as error:
        raise BadRow(
            where, f"{error}", f"scale the image below {Image.MAX_IMAGE_PIXELS} pixels"
        ) from error
    except UnidentifiedImageError as error:
        raise BadRow(
            where,
            f"expected an image, received {len(data)} bytes of no known image format",
            _REPLACE,
        ) from error
    except MemoryError:
        raise  # the machine lacks memory, the image may be sound: not a row to skip
    except Exception as error:
        # Pillow's format plugins raise many types on damaged bytes: OSError, SyntaxError,
        # struct.error, zlib.error, ...
        raise BadRow(
            where, f"the image cannot be decoded ({first_line(error)})", _REPLACE
        ) from error
    if 0 in image.size:
        raise BadRow(where, f"the image has no pixels {image.size}", _REPLACE)
    return image


def decode_image_cell(cell: Any, where: Place | str) -> Image.Image:
    """Decode the image of a parquet row: the encoded file, or a struct with it as ``bytes``.

    The struct also has a ``path``. It is never opened: it names a file of whoever made the table.
    """
    data = cell.get("bytes") if isinstance(cell, dict) else cell
    if not data or not isinstance(data, bytes):
        raise BadRow(
            where,
            "expected the bytes of an image, received none",
            "embed the image bytes in the table, or remove the row",
        )
    return decode_image(data, where)


def decode_base64(text: str, where: Place | str) -> bytes:
    """Decode base64, refusing characters outside its alphabet; line breaks are allowed.

    The lenient decoder of the standard library skips what it does not know, so that a ``data:``
    prefix or a cut-off cell turns into other bytes instead of an error.
    """
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError as error:  # binascii.Error is one
        raise BadRow(
            where,
            f"expected base64, received {text[:40]!a}... ({error})",
            "store the bare base64 of the image file, without a 'data:' prefix",
        ) from error


def read_image_file(path: str, root: Path, where: Place) -> Image.Image:
    """Read an image that a data file names, from inside ``root`` only."""
    resolved = file_inside(path, root, where, "image")
    # Where a cell names the file, an error names both; in a folder of images, where is the file.
    is_cell = where.column is not None
    return decode_image(
        resolved.read_bytes(), replace(where, note=resolved.name) if is_cell else where
    )


def file_inside(path: str, root: Path, where: Place, what: str, *, folders: bool = False) -> Path:
    """A file that a data file names, or a folder, inside ``root`` only.

    A data file from elsewhere must not make normprobe open any other file: absolute paths, ``..``
    and symbolic links that lead out of ``root`` are refused. A URL ``file://`` is its path.
    """
    try:
        local = unquote(path[7:]) if path.startswith("file://") else path
        resolved = (root / local).resolve()
        if not resolved.is_relative_to(root.resolve()):
            raise BadRow(
                where,
                f"the {what} path {path[:200]!a} leaves the folder {root}",
                f"put the {what} itself (no link) into {root} and name it relative to that folder",
            )
        if folders and resolved.is_dir():
            return resolved
        if resolved.exists() and not resolved.is_file():  # reading a pipe may never end
            raise OSError("it is no plain file")
        with resolved.open("rb"):
            return resolved
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: a NUL character in the name
        raise BadRow(
            where,
            f"the {what} file {path[:200]!a} cannot be read from {root} ({first_line(error)})",
            f"put the {what} into {root}",
        ) from error


def image_hash(image: Image.Image) -> str:
    """SHA-256 of the size and the RGB pixels; the same in whatever file format they are saved."""
    width, height = image.size
    return hashlib.sha256(f"{width}x{height}\n".encode() + image.tobytes()).hexdigest()


@cache
def _formats() -> tuple[str, ...]:
    """Those of ``FORMATS`` that this Pillow was built with."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _refuse_bomb(size: tuple[int, int]) -> None:
    """Refuse at Pillow's limit, where it only warns: a few kB can ask for gigabytes of memory."""
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and size[0] * size[1] > limit:
        raise Image.DecompressionBombError(
            f"Image size ({size[0] * size[1]} pixels) exceeds limit of {limit} pixels, "
            "could be decompression bomb."
        )


def as_shown(image: Image.Image) -> Image.Image:
    """RGB of any Pillow mode, and upright, so that a viewer would show the same picture."""
    return _to_rgb(ImageOps.exif_transpose(image))


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    if image.mode.startswith("I") or image.mode == "F":
        return _to_8_bit(image).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")


def _to_8_bit(image: Image.Image) -> Image.Image:
    """Scale grey samples wider than 8 bits; Pillow's own conversion clips them at 255.

    16-bit samples have a nominal white, 65535. Wider integers and floats are written in many
    ranges: white is the least of 1 (of floats), 255 and 65535 that no sample exceeds. Where one
    does, or is negative, their own range from darkest to brightest becomes black to white.
    """
    import numpy as np

    samples: Any = np.asarray(image).reshape(-1)
    finite = samples[np.isfinite(samples)] if image.mode == "F" else samples
    darkest, brightest = map(float, (finite.min(), finite.max()) if finite.size else (0, 1))
    whites = {"F": (1.0, 255.0, 65535.0), "I": (255.0, 65535.0)}.get(image.mode, (65535.0,))
    black, white = 0.0, next((w for w in whites if brightest <= w), brightest)
    if darkest < 0 or brightest > whites[-1]:
        black, white = darkest, brightest
    grey = np.empty(samples.shape, np.uint8)
    for begin in range(0, len(samples), _AT_ONCE):
        part = samples[begin : begin + _AT_ONCE].astype(np.float64)
        part = np.nan_to_num(part, nan=black, posinf=white, neginf=black)
        scaled = (part - black) / max(white - black, np.finfo(np.float64).tiny)
        grey[begin : begin + _AT_ONCE] = np.round(scaled * 255)
    return Image.fromarray(grey.reshape(image.height, image.width))
