"""Pictures and a question of one's own as a sample."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from PIL import Image

from normprobe.data.images import decode_image
from normprobe.data.sample import Sample, marks_fault
from normprobe.errors import NormprobeError

Picture = Path | str | Image.Image
"""A picture, or its file."""


def as_sample(images: Picture | Sequence[Picture] | Sample, prompt: str = "") -> Sample:
    """Pictures and a question about them."""
    if isinstance(images, Sample):
        sample = replace(images, prompt=prompt or images.prompt)
    else:
        given = [images] if isinstance(images, Picture) else images
        names, pictures = zip(*map(_read, given), strict=True) if given else ((), ())
        sample = Sample("+".join(names), prompt, tuple(pictures))
    if not sample.images:
        raise NormprobeError("--image: received no picture", "give a picture, or several")
    if fault := marks_fault(sample.prompt, len(sample.images)):
        raise NormprobeError(f"--prompt: {fault}", "mark each image in the prompt, or none")
    return sample


def _read(picture: Picture) -> tuple[str, Image.Image]:
    """The name of a picture and its pixels."""
    if isinstance(picture, Image.Image):
        return "image", picture.convert("RGB")
    path = Path(picture)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NormprobeError(
            f"--image: {path} cannot be read ({error.strerror or error})",
            "give the path of a picture",
        ) from error
    return path.name, decode_image(data, f"--image {path}")
