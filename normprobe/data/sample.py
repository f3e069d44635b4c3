"""What every data set yields: one question with its images, and regions of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from PIL import Image

from normprobe.data.images import decode_image, image_hash
from normprobe.errors import NormprobeError

#: Left, top, right and bottom in pixels of the picture.
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Referent:
    """What a word of a prompt means in the picture: the pair that grounding is about."""

    word: str  # or a phrase; it stands in the prompt, after the picture
    box: Box  # around what it means


@dataclass(frozen=True)
class Answer:
    """The right answer to a prompt.

    Attributes:
        text: as the model should write it.
        options: the answers that could be given, the right one among them; none: any.
    """

    text: str
    options: tuple[str, ...] = ()


def is_region(box: Box, size: tuple[int, int]) -> bool:
    """Whether a box has an area and lies in a picture."""
    left, top, right, bottom = box
    width, height = size
    return 0 <= left < right <= width and 0 <= top < bottom <= height


def spans_of_word(word: str, text: str) -> list[tuple[int, int]]:
    """Where a word or phrase stands alone in a text, whatever its case: begin and end of each."""
    if not word.strip():
        return []
    pattern = rf"(?<!\w){re.escape(word.strip())}(?!\w)"
    return [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)]


#: Says in a prompt where an image stands. A prompt without marks follows its images.
IMAGE_MARK = "<image>"


def marks_fault(prompt: str, images: int) -> str | None:
    """What is wrong with the marks of a prompt about so many images; None: nothing."""
    marks = prompt.count(IMAGE_MARK)
    if images == 0 or marks in (0, images):
        return None
    return f"expected as many marks {IMAGE_MARK} as images ({images}), or none; received {marks}"


@dataclass(frozen=True)
class Sample:
    """One question.

    Attributes:
        id: ``"mmbench/1"``: unique within a data set.
        prompt: the user turn without the placeholders of any model. ``IMAGE_MARK`` may say where
            the images stand.
        images: in the order of the prompt; none for text alone. RGB, upright (EXIF applied),
            transparency laid on white.
        referent: of a word of the prompt, what it means in the image; None: nobody said.
        answer: the right one; None: nobody said.
    """

    id: str
    prompt: str
    images: tuple[Image.Image, ...] = ()
    referent: Referent | None = None
    answer: Answer | None = None

    @property
    def image(self) -> Image.Image | None:
        """The first image, None for text alone."""
        return self.images[0] if self.images else None

    @cached_property
    def image_hashes(self) -> tuple[str, ...]:
        """``images.image_hash`` of each image: equal pixels, equal hash, whatever the file."""
        return tuple(map(image_hash, self.images))

    @property
    def image_hash(self) -> str | None:
        """What samples about the same images share: their hashes, joined by ``+``."""
        return "+".join(self.image_hashes) or None

    @property
    def is_marked(self) -> bool:
        """Whether the prompt says where its images stand. Other marks in it are text."""
        return bool(self.images) and self.prompt.count(IMAGE_MARK) == len(self.images)

    @property
    def pieces(self) -> list[str | Image.Image]:
        """The user turn: its texts and images in their order; no text is empty.

        >>> Sample("text/1", "What does <image> mean in HTML?").pieces
        ['What does <image> mean in HTML?']
        """
        if not self.is_marked:
            return [*self.images, self.prompt]
        first, *others = self.prompt.split(IMAGE_MARK)
        pieces: list[str | Image.Image] = [first]
        for image, text in zip(self.images, others, strict=True):
            pieces += [image, text]
        return [piece for piece in pieces if piece != ""]

    @property
    def texts(self) -> list[str]:
        """The texts among ``pieces``."""
        return [piece for piece in self.pieces if isinstance(piece, str)]

    @property
    def starts_with_images(self) -> bool:
        """Whether no text stands before an image."""
        return not any(isinstance(piece, str) for piece in self.pieces[: len(self.images)])

    def text_with(self, placeholder_of: Callable[[int], str], separator: str = "") -> str:
        """The user turn as text, with a placeholder for each image."""
        placeholders = [placeholder_of(number + 1) for number in range(len(self.images))]
        if not self.is_marked:
            return "".join(placeholder + separator for placeholder in placeholders) + self.prompt
        first, *others = self.prompt.split(IMAGE_MARK)
        return first + "".join(map("".join, zip(placeholders, others, strict=True)))


Picture = Path | str | Image.Image  # or its file


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
