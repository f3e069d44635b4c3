"""A folder of images, each with the same prompt."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from normprobe.data.bad_rows import Place
from normprobe.data.images import read_image
from normprobe.data.question import Content, Question, Source
from normprobe.data.sample import marks_fault
from normprobe.errors import NormprobeError

IMAGES = "images"
PROMPT = "Describe the image."
"""The prompt of every image where none is given; neutral, for it has to fit each of them."""

SUFFIXES = {
    *(".png", ".jpg", ".jpeg", ".jp2", ".webp", ".avif"),
    *(".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"),
}


def read_image_folder(folder: Path, prompt: str | None = None) -> Source | None:
    """The images of a folder and the folders below it, sorted by name; None if there are none."""
    prompt = PROMPT if prompt is None else prompt
    if fault := marks_fault(prompt, 1):
        raise NormprobeError(f"--prompt: {fault}", "mark the image once, or leave the mark out")
    names = sorted(
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and not path.is_dir()
    )
    questions = []
    for name in names:
        # A file name may hold bytes that are not valid UTF-8.
        key = str(name.as_posix()).encode(errors="backslashreplace").decode()
        place = Place(str(folder / key))
        questions.append(Question(IMAGES, key, partial(_load, prompt, str(name), folder, place)))
    where = {"path": str(folder.resolve())}
    return Source(IMAGES, prompt, folder.name, where, questions) if questions else None


def _load(prompt: str, name: str, folder: Path, place: Place) -> Content:
    return Content(prompt, (read_image(name, folder, place),))
