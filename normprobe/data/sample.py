"""What every data set yields: one question with its images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from PIL import Image

from normprobe.data.images import image_hash
from normprobe.data.region import Referent

IMAGE_MARK = "<image>"
"""Says in a prompt where an image stands. A prompt without marks follows its images."""


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
    """

    id: str
    prompt: str
    images: tuple[Image.Image, ...] = ()
    referent: Referent | None = None

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
