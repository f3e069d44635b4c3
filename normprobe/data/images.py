"""Encoded bytes to an upright RGB picture, or a refusal that says where the bytes came from.

Pillow opens a file by its header alone, clips 16-bit samples, drops transparency and leaves EXIF
rotation to the caller. Each of these changes what a vision encoder sees without any error, so all
images pass through ``decode_image``.
"""

import base64
import hashlib
import io
import warnings
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

from normprobe.errors import NormprobeError

_REPLACE = "Replace the image with a complete PNG, JPEG or WebP file"


def decode_image(data: bytes, where: str) -> Image.Image:
    """Decode every pixel of an image; of an animation, the first frame.

    Args:
        data: the encoded image.
        where: file, row and column of the bytes, for the error.

    Returns:
        An RGB image with EXIF rotation applied and transparency composited on white.

    Raises:
        NormprobeError: not an image, cut short, empty, or larger than Pillow's limit on pixels.
    """
    try:
        with warnings.catch_warnings():
            # Pillow warns from its limit on and refuses from twice the limit on. Refuse at once:
            # the limit is there because a file of a few kB can ask for gigabytes of memory.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data)) as encoded:
                encoded.load()  # open() reads the header; only this notices a missing end
                image = _to_rgb(ImageOps.exif_transpose(encoded))
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise NormprobeError(
            f"{where}: {error}",
            f"Scale the image below {Image.MAX_IMAGE_PIXELS} pixels, or leave it out.",
        ) from error
    except UnidentifiedImageError as error:
        raise NormprobeError(
            f"{where}: expected an image, received {len(data)} bytes of no known image format.",
            f"{_REPLACE}.",
        ) from error
    except Exception as error:
        # Each of Pillow's format plugins fails in its own way on damaged bytes (OSError,
        # SyntaxError, struct.error, zlib.error, ...); what they mean is the same.
        raise NormprobeError(
            f"{where}: the image cannot be decoded ({error}).", f"{_REPLACE}."
        ) from error
    if 0 in image.size:
        raise NormprobeError(f"{where}: the image has no pixels {image.size}.", f"{_REPLACE}.")
    return image


def decode_image_cell(cell: Any, where: str) -> Image.Image:
    """Decode the image of a parquet row: a struct whose ``bytes`` hold the encoded file.

    The struct also has a ``path``. It is never opened: it names a file of whoever made the table.

    Raises:
        NormprobeError: no bytes, or ``decode_image`` refuses them.
    """
    data = cell.get("bytes") if isinstance(cell, dict) else None
    if not data:
        raise NormprobeError(
            f"{where}: expected the bytes of an image, received none.",
            "Embed the image bytes in the table, or remove the row.",
        )
    return decode_image(data, where)


def decode_base64(text: str, where: str) -> bytes:
    """Decode base64, refusing characters outside its alphabet; line breaks are allowed.

    The lenient decoder of the standard library skips what it does not know, so that a ``data:``
    prefix or a cut-off cell turns into other bytes instead of an error.

    Raises:
        NormprobeError: not base64.
    """
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError as error:  # binascii.Error is one
        raise NormprobeError(
            f"{where}: expected base64, received {text[:40]!r}... ({error}).",
            "Store the bare base64 of the image file, without a 'data:' prefix.",
        ) from error


def read_image(path: str, root: Path, where: str) -> Image.Image:
    """Read an image that a data file names, from inside ``root`` only.

    A data file from elsewhere must not make normprobe open any other file: absolute paths, ``..``
    and symbolic links that lead out of ``root`` are refused.

    Args:
        path: the name as it stands in the data file.
        root: the folder of the images.
        where: file, row and column of the name, for the error.

    Raises:
        NormprobeError: outside of ``root``, missing, or ``decode_image`` refuses it.
    """
    try:
        resolved = (root / path).resolve()
        inside = resolved.is_relative_to(root.resolve())
        data = resolved.read_bytes() if inside else b""
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        raise NormprobeError(
            f"{where}: the image file {path!r} cannot be read from {root} ({error}).",
            f"Put the image into {root}.",
        ) from error
    if not inside:
        raise NormprobeError(
            f"{where}: the image path {path!r} leaves the folder {root}.",
            f"Put the image itself (no link) into {root} and name it relative to that folder.",
        )
    return decode_image(data, f"{where} ({resolved.name})")


def image_hash(image: Image.Image) -> str:
    """SHA-256 of the size and the RGB pixels: the same picture in another file format matches."""
    width, height = image.size
    return hashlib.sha256(f"{width}x{height}\n".encode() + image.tobytes()).hexdigest()


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert any Pillow mode to RGB so that a viewer would show the same picture."""
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

    16-bit samples have a nominal white, 65535. Wider integers and floats have none: their own
    range from darkest to brightest becomes black to white.
    """
    import numpy as np

    samples: Any = np.asarray(image, dtype=np.float64)
    black, white = 0.0, 65535.0
    if image.mode == "F" or samples.min() < black or samples.max() > white:
        finite = samples[np.isfinite(samples)]
        black, white = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
        samples = np.nan_to_num(samples, nan=black, posinf=white, neginf=black)
    scaled = (samples - black) / max(white - black, np.finfo(np.float64).tiny)
    return Image.fromarray(np.round(scaled * 255).astype(np.uint8))
