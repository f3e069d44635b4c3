"""What every data set yields: one question with its images, and regions of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from normprobe.data.images import as_shown, decode_image, image_hash
from normprobe.data.media import Audio, Video, decode_audio, decode_video
from normprobe.errors import NormprobeError
from normprobe.schema import AUDIO, IMAGE, VIDEO

#: What a prompt can be about.
Medium = Image.Image | Video | Audio

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
#: The same of all that a prompt can be about, in the order in which they precede one without marks.
MEDIA_MARKS = {IMAGE: IMAGE_MARK, VIDEO: "<video>", AUDIO: "<audio>"}


def kind_of(medium: Medium) -> str:
    """A key of ``MEDIA_MARKS``."""
    return VIDEO if isinstance(medium, Video) else AUDIO if isinstance(medium, Audio) else IMAGE


def marks_fault(prompt: str, images: int, videos: int = 0, audios: int = 0) -> str | None:
    """What is wrong with the marks of a prompt about so many of each; None: nothing."""
    held = zip(MEDIA_MARKS.items(), (images, videos, audios), strict=True)
    counts = [(kind, mark, prompt.count(mark), count) for (kind, mark), count in held if count]
    wrong = [each for each in counts if each[2] != each[3]]
    if not wrong or not any(marks for _, _, marks, _ in counts):
        return None
    kind, mark, marks, count = wrong[0]
    return f"expected as many marks {mark} as {kind}s ({count}), or none; received {marks}"


class Turn(NamedTuple):
    """A turn of a conversation that has ended."""

    user: str  # what was asked; marks in it say where its images stand
    reply: str  # what the model said


@dataclass(frozen=True)
class Sample:
    """One question, or a conversation that ends with one.

    Attributes:
        id: ``"mmbench/1"``: unique within a data set.
        prompt: the user turn without the placeholders of any model. ``IMAGE_MARK`` may say where
            the images stand.
        images: in the order of the prompt; none for text alone. RGB, upright (EXIF applied),
            transparency laid on white.
        referent: of a word of the prompt, what it means in the image; None: nobody said.
        answer: the right one; None: nobody said.
        videos: likewise; without marks they stand behind the images.
        audios: likewise, behind the videos.
        earlier: the turns before ``prompt``. ``images``, ``videos`` and ``audios`` are those of all
            turns; without marks they stand before the first.
    """

    id: str
    prompt: str
    images: tuple[Image.Image, ...] = ()
    referent: Referent | None = None
    answer: Answer | None = None
    videos: tuple[Video, ...] = ()
    audios: tuple[Audio, ...] = ()
    earlier: tuple[Turn, ...] = ()

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
        """What samples about the same images, videos and sounds share: hashes, joined by ``+``."""
        others = [*(video.hash for video in self.videos), *(audio.hash for audio in self.audios)]
        return "+".join([*self.image_hashes, *others]) or None

    @property
    def media(self) -> dict[str, Sequence[Medium]]:
        """What the prompt is about, by its kind: those that there are."""
        held: dict[str, Sequence[Medium]] = {IMAGE: self.images, VIDEO: self.videos}
        return {kind: media for kind, media in {**held, AUDIO: self.audios}.items() if media}

    @property
    def pixels(self) -> int:
        """Of all pictures and frames."""
        frames = [*self.images, *(frame for video in self.videos for frame in video.frames)]
        return sum(frame.width * frame.height for frame in frames)

    @property
    def is_marked(self) -> bool:
        """Whether the prompt says where its images stand. Other marks in it are text."""
        asked = "".join(self.user_turns)
        marks = {kind: asked.count(MEDIA_MARKS[kind]) for kind in self.media}
        return bool(marks) and all(len(self.media[kind]) == n for kind, n in marks.items())

    @property
    def user_turns(self) -> list[str]:
        """What the user says in each turn."""
        return [*(turn.user for turn in self.earlier), self.prompt]

    @property
    def turns(self) -> list[Sample]:
        """What the user says in each turn, a sample of its own with what the turn is about.

        >>> two = Sample("text/1", "Why?", earlier=(Turn("Is it?", "Yes."),))
        >>> [turn.prompt for turn in two.turns]
        ['Is it?', 'Why?']
        """
        if not self.earlier:
            return [self]
        left: dict[str, Iterator[Any]]
        left = {kind: iter(self.media.get(kind, ())) for kind in MEDIA_MARKS}
        turns = []
        for number, text in enumerate(self.user_turns):
            everything = None if number == 0 else 0  # without marks
            images, videos, audios = (
                tuple(islice(left[kind], text.count(mark) if self.is_marked else everything))
                for kind, mark in MEDIA_MARKS.items()
            )
            turns.append(Sample(self.id, text, images, videos=videos, audios=audios))
        return turns

    @property
    def pieces(self) -> list[str | Medium]:
        """What the user says: texts, images, videos and sounds in their order; no text is empty.

        >>> Sample("text/1", "What does <image> mean in HTML?").pieces
        ['What does <image> mean in HTML?']
        """
        if self.earlier:
            return [piece for turn in self.turns for piece in turn.pieces]
        if not self.is_marked:
            return [*itertools.chain.from_iterable(self.media.values()), self.prompt]
        left = {MEDIA_MARKS[kind]: iter(held) for kind, held in self.media.items()}
        pieces = re.split(f"({'|'.join(left)})", self.prompt)
        return [next(left[piece]) if piece in left else piece for piece in pieces if piece != ""]

    @property
    def texts(self) -> list[str]:
        """The texts among ``pieces``, and what the model said."""
        said = [turn.reply for turn in self.earlier]
        return [*(piece for piece in self.pieces if isinstance(piece, str)), *said]

    @property
    def starts_with_images(self) -> bool:
        """Whether no text stands before an image, a video or a sound."""
        media = sum(map(len, self.media.values()))
        return not any(isinstance(piece, str) for piece in self.pieces[:media])

    def require_one_turn(self) -> None:
        """Refuse a conversation where no chat template says how its turns are written."""
        if self.earlier:
            raise ValueError(f"{self.id}: several turns need a chat template that writes them")

    def text_with(
        self, placeholder_of: Callable[[int], str], separator: str = "", **others: str | None
    ) -> str:
        """The user turn as text, with a placeholder for each image.

        ``others``: those of a video and of a sound, ``video`` and ``audio``.

        Raises:
            ValueError: it has several turns, or holds what the model is not given.
        """
        self.require_one_turn()
        written, images = "", itertools.count(1)
        for piece in self.pieces:
            if not isinstance(piece, str):
                kind = kind_of(piece)
                placed = placeholder_of(next(images)) if kind == IMAGE else others.get(kind)
                if placed is None:
                    raise ValueError(f"{self.id}: the model is given no {kind}")
                piece = placed if self.is_marked else placed + separator
            written += piece
        return written


Picture = Path | str | Image.Image  # or its file


def as_sample(
    images: Picture | Sequence[Picture] | Sample,
    prompt: str = "",
    videos: Sequence[Path | str | Video] = (),
    audios: Sequence[Path | str | Audio] = (),
) -> Sample:
    """Pictures, videos and sounds, and a question about them."""
    if isinstance(images, Sample):
        sample = replace(images, prompt=prompt or images.prompt)
    else:
        given = [images] if isinstance(images, Picture) else images
        names, pictures = zip(*map(_read, given), strict=True) if given else ((), ())
        sample = Sample("+".join(names), prompt, tuple(pictures))
    sample = replace(
        sample,
        videos=(*sample.videos, *(_opened(each, "video", decode_video) for each in videos)),
        audios=(*sample.audios, *(_opened(each, "audio", decode_audio) for each in audios)),
    )
    if not sample.images:
        raise NormprobeError("--image: received no picture", "give a picture, or several")
    counts = map(len, (sample.images, sample.videos, sample.audios))
    if fault := marks_fault(sample.prompt, *counts):
        raise NormprobeError(f"--prompt: {fault}", "mark each image in the prompt, or none")
    return sample


def _opened(medium: Any, kind: str, decode: Callable[[Path, str], Any]) -> Any:
    """A video or a sound, or that of a file."""
    if isinstance(medium, Video | Audio):
        return medium
    if not Path(medium).is_file():
        raise NormprobeError(f"--{kind}: {medium} is no file", f"give the path of a {kind} file")
    return decode(Path(medium), f"--{kind} {medium}")


def _read(picture: Picture) -> tuple[str, Image.Image]:
    """The name of a picture and its pixels."""
    if isinstance(picture, Image.Image):
        return "image", as_shown(picture)
    path = Path(picture)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NormprobeError(
            f"--image: {path} cannot be read ({error.strerror or error})",
            "give the path of a picture",
        ) from error
    return path.name, decode_image(data, f"--image {path}")
