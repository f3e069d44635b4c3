"""What a processor is made of."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from support.tiny_models import TILE

#: An image of one fixed size.
SQUARE = {"size": {"height": TILE, "width": TILE}}


class Recipe(NamedTuple):
    """How to build the processor of one type."""

    processor: str
    image_processor: str | None
    images: Mapping[str, Any] = SQUARE
    options: Mapping[str, Any] = {}
    #: Ids and names of special tokens, beside those of every tokenizer.
    names: Mapping[int, str] = {}
    #: Attributes of the tokenizer and ids, beside those of every tokenizer.
    roles: Mapping[str, int | None] = {}
    #: Special tokens whose ids do not matter.
    more: Sequence[str] = ()
    video_processor: str | None = None
    videos: Mapping[str, Any] = {}
    feature_extractor: str | None = None
    sounds: Mapping[str, Any] = {}
    #: What the template writes for an image, if not the image token of the processor.
    placeholder: str | None = None
    #: The same for a video.
    video: str | None = None
    #: Published checkpoints have a chat template.
    chat: bool = True
    #: Visual rows an image. ``None``: as many as the processor writes placeholders.
    rows: int | None = None
