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
        text: ``[batch, seq]`` bool, positions that change with the words and not with the pixels;
            with either, where none changes with the words alone (UDOP adds a patch to each word).
    """

    stack: Stack
    visual: Tensor | None
    text: Tensor


def find_language(stacks: Iterable[Stack], replaced: Sequence[Tensor]) -> Language | None:
    """The stack whose first input changes with the words.

    Where there are several: one that reads visual tokens beside text is preferred, then one whose
    output changes with the pixels, then the largest.

    Args:
        stacks: all lists of blocks.
        replaced: for each tensor of ids which positions got another word, ``[batch, seq]``.
    """
    readers = sorted(
        (stack for stack in stacks if stack.input.by_text.any()), key=lambda stack: stack.began
    )
    # Before the first of them, no layer can have mixed image and text; before others, one may have.
    found = [_language(stack, replaced, mixed=stack is not readers[0]) for stack in readers]
    return max(
        (language for language in found if language is not None),
        key=lambda language: (
            language.visual is not None,
            bool(language.stack.output.by_pixels.any()),
            language.stack.size,
        ),
        default=None,
    )


def _language(stack: Stack, replaced: Sequence[Tensor], mixed: bool) -> Language | None:
    batch, lengths = len(replaced[0]), {mask.shape[1] for mask in replaced}
    pixels = by_position(stack.input.by_pixels, batch, lengths)
    text = by_position(stack.input.by_text, batch, lengths)
    if pixels is None or text is None:
        return None
    words = next((mask for mask in replaced if mask.shape == pixels.shape), text)
    alone = text & ~pixels
    # After a layer that mixes image and text, replaced words change with the pixels too.
    separate = alone.any() and not (pixels & words).any()
    if not pixels.any() or (mixed and not separate):
        return Language(stack, None, text)
    return Language(stack, pixels, alone if alone.any() else text)


def influenced_positions(
    stacks: Iterable[Stack], shapes: Iterable[tuple[int, ...]]
) -> dict[tuple[int, ...], Tensor]:
    """The positions that change with the pixels before image and text mix, by the shape of ids.

    They are read off the input of the first stack of that shape. A stack in which all positions
    change reads no text: a vision encoder may happen to have the shape.
    """
    influenced = {}
    in_time = sorted(stacks, key=lambda stack: stack.began)
    for shape in shapes:
        found = (by_position(s.input.by_pixels, shape[0], {shape[1]}) for s in in_time)
        fitting = (mask for mask in found if mask is not None and mask.shape == shape)
        nowhere = torch.zeros(shape, dtype=torch.bool)
        influenced[shape] = next((mask for mask in fitting if not mask.all()), nowhere)
    return influenced


def injected_layers(language: Language) -> tuple[int, ...]:
    """Layers, from 1, whose input at visual positions is not the output of the layer before."""
    if language.visual is None:
        return ()
    numbers = []
    stack, (batch, length) = language.stack, language.visual.shape
    for (before, call), number in zip(pairwise(stack.calls), stack.numbers[1:], strict=True):
        output, input = stream_out(before), stream_in(call)
        if output.tensor_shape == input.tensor_shape:
            differing = by_position(differs(output.base, input.base), batch, {length})
            if differing is not None and (differing & language.visual).any():
                numbers.append(number)
    return tuple(numbers)
