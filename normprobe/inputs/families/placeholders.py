"""Image placeholders in prompts, which several families write in the same way."""

from collections.abc import Sequence
from dataclasses import replace

from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError


def with_placeholder(samples: Sequence[Sample], placeholder: str) -> list[Sample]:
    """Write the image placeholder into the prompts, where the images stand.

    Args:
        samples: their prompts are written anew.
        placeholder: ``{}`` in it is the number of the image, from 1. White space at its end is
            left out of prompts that say where their images stand.

    Raises:
        NormprobeError: a prompt contains the placeholder.
    """
    mark = placeholder.rstrip()
    separator = placeholder.removeprefix(mark)
    placed = []
    for sample in samples:
        written = mark.format(1)
        if any(written in piece for piece in sample.pieces if isinstance(piece, str)):
            raise NormprobeError(
                f"{sample.id}: the prompt contains this model's image placeholder {written!r}.",
                "Remove it from the prompt; normprobe places the image itself.",
            )
        placed.append(replace(sample, prompt=sample.text_with(mark.format, separator)))
    return placed
