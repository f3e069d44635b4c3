"""Which image of its sample each position of a prompt belongs to, whatever the processor.

No token id tells one image from the next, and their placeholders may follow each other without a
gap, or come in runs of tiles. So the processor is asked once more for each image but the last, with
a word written behind that image: where the two prompts begin to differ, the image has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from normprobe.data.sample import IMAGE_MARK, Sample
from normprobe.nested import find_named
from normprobe.schema import IMAGE_NUMBERS

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import BatchFeature

_WORD = "word"  # any would do


def with_image_numbers(
    inputs: BatchFeature,
    samples: Sequence[Sample],
    build: Callable[[Sequence[Sample]], BatchFeature],
) -> BatchFeature:
    """Add ``image_numbers`` to a batch in which not each sample has one image.

    Returns:
        ``inputs``, with an int tensor [batch, seq]: the number, from 1, of the image that a
        placeholder at this position stands for. The text behind an image has its number too. 0:
        padding, and samples without images.
    """
    import torch

    from normprobe.inputs.pixels import pixel_inputs

    ids = find_named(inputs, "input_ids")
    if ids is None or not pixel_inputs(inputs) or all(len(s.images) == 1 for s in samples):
        return inputs
    mask = find_named(inputs, "attention_mask")
    mask = torch.ones_like(ids).bool() if mask is None else mask.bool()
    numbers = torch.zeros_like(ids)
    for row, sample in enumerate(samples):
        if not sample.images:
            continue
        own = ids[row, mask[row]]
        numbers_of_sample = torch.ones_like(own)
        for number in range(1, len(sample.images)):
            other = find_named(build([_with_word_behind(sample, number)]), "input_ids")[0]
            numbers_of_sample[_common_length(own, other) :] += 1
        numbers[row, mask[row]] = numbers_of_sample
    inputs[IMAGE_NUMBERS] = numbers
    return inputs


def _with_word_behind(sample: Sample, number: int) -> Sample:
    def mark(image: int) -> str:
        return IMAGE_MARK + (_WORD if image == number else "")

    return replace(sample, prompt=sample.text_with(mark))


def _common_length(one: Tensor, other: Tensor) -> int:
    """How many tokens two prompts share before they differ."""
    shared = min(len(one), len(other))
    different = (one[:shared] != other[:shared]).nonzero()
    return int(different[0]) if len(different) else shared
