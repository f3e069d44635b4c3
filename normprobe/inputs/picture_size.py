"""Processors that ask for pictures larger than any that is read."""

from collections.abc import Mapping
from typing import Any

from PIL import Image

from normprobe.errors import NormprobeError


def refuse_huge_pictures(processor: Any, name: str) -> None:
    """Refuse a processor whose settings enlarge every picture beyond Pillow's limit on pixels.

    Args:
        processor: of ``load_processor``.
        name: of its checkpoint, for the message.

    Raises:
        NormprobeError: it asks for more pixels than a picture may have when it is read.
    """
    settings = getattr(processor, "image_processor", processor)
    for field in ("size", "crop_size", "pad_size"):
        size: Any = getattr(settings, field, None)
        pixels = _pixels(size)
        if pixels > (Image.MAX_IMAGE_PIXELS or pixels):
            raise NormprobeError(
                f"the processor of {name} asks for pictures of {pixels:.3g} pixels "
                f"({field} {dict(size)}); expected {Image.MAX_IMAGE_PIXELS:.3g} at most",
                f"check {field} in processor_config.json or preprocessor_config.json",
            )


def _pixels(size: Any) -> float:
    """The fewest pixels that a picture gets; 0 where that is not said."""
    told = dict(size) if isinstance(size, Mapping) or hasattr(size, "keys") else {}
    numbers = {key: value for key, value in told.items() if isinstance(value, int | float)}
    if {"height", "width"} <= numbers.keys():
        return float(numbers["height"]) * numbers["width"]
    shortest = float(numbers.get("shortest_edge", 0))
    # Together with a longest "edge" of a hundred thousand, these are numbers of pixels.
    return shortest if numbers.get("longest_edge", 0) > 100_000 else shortest**2
