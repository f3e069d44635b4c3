"""What every data set yields: one question with its image."""

from dataclasses import dataclass

from PIL import Image


@dataclass(frozen=True)
class Sample:
    """One question.

    Attributes:
        id: ``"mmbench/1"``: unique within a data set.
        prompt: the user turn, without any image placeholder.
        image: RGB, upright (EXIF applied), transparency laid on white; ``None`` for text alone.
        image_hash: ``images.image_hash`` of ``image``: equal pixels, equal hash, whatever the file.
    """

    id: str
    prompt: str
    image: Image.Image | None
    image_hash: str | None
