"""Which stack reads the text, and where the image is in what it reads."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from normprobe.model.tracing.observation import by_position
from normprobe.model.tracing.sketches import differs
from normprobe.model.tracing.stacks import Stack, stream_in, stream_out


@dataclass(frozen=True)
class Language:
    """The stack that reads the text.

    Attributes:
        stack: the list of decoder layers.
        visual: ``[batch, seq]`` bool, positions of layer 1's input that change with the pixels;
            None where the image is not in the sequence.
        text: the same for the words alone; for the words and the pixels where no word stands alone
            (UDOP adds a patch to each word on it).
    """

    stack: Stack
    visual: Tensor | None
    text: Tensor


def find_language(stacks: Iterable[Stack], replaced: Sequence[Tensor]) -> Language | None:
    """The stack whose first input changes with the words; the largest where there are several.

    One that finds visual rows beside text rows is preferred, then one whose output changes with
    the pixels.

    Args:
        stacks: all lists of blocks.
        replaced: for each ids input which positions got another word, ``[batch, seq]``.
    """
    readers = sorted(
        (stack for stack in stacks if stack.entered.by_text.any()), key=lambda stack: stack.began
    )
    # Only before the first of them can no layer have mixed image and text.
    found = [_language(stack, replaced, mixed=stack is not readers[0]) for stack in readers]
    return max(
        (language for language in found if language is not None),
        key=lambda language: (
            language.visual is not None,
            bool(language.stack.left.by_pixels.any()),
            language.stack.size,
        ),
        default=None,
    )


def _language(stack: Stack, replaced: Sequence[Tensor], mixed: bool) -> Language | None:
    batch, lengths = len(replaced[0]), {mask.shape[1] for mask in replaced}
    pixels = by_position(stack.entered.by_pixels, batch, lengths)
    text = by_position(stack.entered.by_text, batch, lengths)
    if pixels is None or text is None:
        return None
    words = next((mask for mask in replaced if mask.shape == pixels.shape), text)
    alone = text & ~pixels
    # Behind a layer that mixes them, replaced words too change with the pixels.
    separate = alone.any() and not (pixels & words).any()
    if not pixels.any() or (mixed and not separate):
        return Language(stack, None, text)
    return Language(stack, pixels, alone if alone.any() else text)


def influenced_positions(
    stacks: Iterable[Stack], shapes: Iterable[tuple[int, ...]]
) -> dict[tuple[int, ...], Tensor]:
    """By the shape of ids, the positions that change with the pixels before image and text mix.

    They are read off the first stack of that shape. One in which all change reads no text: a
    vision encoder may happen to have the shape.
    """
    influenced = {}
    in_time = sorted(stacks, key=lambda stack: stack.began)
    for shape in shapes:
        found = (by_position(s.entered.by_pixels, shape[0], {shape[1]}) for s in in_time)
        fitting = (mask for mask in found if mask is not None and mask.shape == shape)
        nowhere = torch.zeros(shape, dtype=torch.bool)
        influenced[shape] = next((mask for mask in fitting if not mask.all()), nowhere)
    return influenced


def injected_layers(language: Language) -> tuple[int, ...]:
    """Layers, from 1, whose input is not what the layer before gave, at visual positions."""
    if language.visual is None:
        return ()
    numbers = []
    stack, (batch, length) = language.stack, language.visual.shape
    for (before, call), number in zip(pairwise(stack.calls), stack.numbers[1:], strict=True):
        given, taken = stream_out(before), stream_in(call)
        if given.tensor_shape == taken.tensor_shape:
            differing = by_position(differs(given.base, taken.base), batch, {length})
            if differing is not None and (differing & language.visual).any():
                numbers.append(number)
    return tuple(numbers)
