"""Image placeholders in prompts, which several families write in the same way."""

from collections.abc import Sequence
from dataclasses import replace

from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError


def with_placeholder(samples: Sequence[Sample], placeholder: str) -> list[Sample]:
    """Write the image placeholder before the prompts of samples that have an image.

    Raises:
        NormprobeError: a prompt contains the placeholder.
    """
    mark = placeholder.strip()
    for sample in samples:
        if mark in sample.prompt:
            raise NormprobeError(
                f"{sample.id}: the prompt contains this model's image placeholder {mark!r}.",
                "Remove it from the prompt; normprobe places the image itself.",
            )
    return [
        sample if sample.image is None else replace(sample, prompt=placeholder + sample.prompt)
        for sample in samples
    ]
