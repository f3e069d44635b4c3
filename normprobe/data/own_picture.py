"""A picture and a question of one's own as a sample."""

from dataclasses import replace
from pathlib import Path

from PIL import Image

from normprobe.data.images import decode_image
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError


def as_sample(image: Path | str | Image.Image | Sample, prompt: str = "") -> Sample:
    """A picture and a question about it.

    Args:
        image: a picture, its file, or a sample that has both.
        prompt: the question; empty: that of the sample.

    Raises:
        NormprobeError: the file cannot be read, or is no picture.
    """
    if isinstance(image, Sample):
        return replace(image, prompt=prompt or image.prompt)
    if isinstance(image, Image.Image):
        picture = image.convert("RGB")
        return Sample("image", prompt, (picture,))
    path = Path(image)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NormprobeError(
            f"--image: {path} cannot be read ({error.strerror or error})",
            "give the path of a picture",
        ) from error
    picture = decode_image(data, f"--image {path}")
    return Sample(path.name, prompt, (picture,))
