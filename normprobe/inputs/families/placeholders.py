"""Image placeholders in prompts, which several families write in the same way."""

from collections.abc import Sequence
from dataclasses import replace

from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError


def with_placeholder(samples: Sequence[Sample], placeholder: str) -> list[Sample]:
    """The samples as text alone, with an image placeholder where each image stands."""
    mark = placeholder.rstrip()
    separator = placeholder.removeprefix(mark)
    refuse_placeholder(samples, mark.format(1))
    return [
        replace(sample, prompt=sample.text_with(mark.format, separator), images=())
        for sample in samples
    ]


def refuse_placeholder(samples: Sequence[Sample], mark: str) -> None:
    """Refuse prompts with a text that the model would take for an image."""
    for sample in samples:
        if any(mark in text for text in sample.texts):
            raise NormprobeError(
                f"{sample.id}: the prompt contains this model's image placeholder {mark!r}",
                "remove it from the prompt; normprobe places the image itself",
            )
