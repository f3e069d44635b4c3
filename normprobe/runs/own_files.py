"""Which files of a run folder are read, and how large they may be: it may come from a stranger."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

_LARGEST = 2**27  # bytes of a table or record: 100 maps of the largest models
_MOST_PIXELS = 2**26  # of a picture: a figure of a hundred panels


def is_own(file: Path, folder: Path) -> bool:
    """Whether it is a regular file that lies in the folder: no link out of it, no pipe."""
    return file.is_file() and file.resolve().is_relative_to(folder.resolve())


def own_files(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder that match a pattern and are its own, in alphabetical order."""
    return sorted(file for file in folder.glob(pattern) if is_own(file, folder))


def own_bytes(file: Path, folder: Path) -> bytes:
    """The content of a folder's own file."""
    if not is_own(file, folder):
        raise FileNotFoundError("it is no regular file of the folder")
    if (size := file.stat().st_size) > _LARGEST:
        raise OSError(f"expected {_LARGEST / 2**20:.0f} MB at most, received {size / 2**20:.0f}")
    return file.read_bytes()


@contextmanager
def own_picture(file: Path, folder: Path) -> Iterator[Image.Image]:
    """A folder's own PNG, looked at as far as its header."""
    if not is_own(file, folder):
        raise FileNotFoundError("it is no regular file of the folder")
    try:
        with Image.open(file, formats=["PNG"]) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise OSError(
                    f"expected {_MOST_PIXELS:,} pixels at most, received "
                    f"{image.width} x {image.height}"
                )
            yield image
    except (Image.DecompressionBombError, SyntaxError, ValueError) as error:
        raise OSError(str(error)) from error
