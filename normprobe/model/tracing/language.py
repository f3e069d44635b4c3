"""Which stack of blocks reads the text, and where the image is in what it reads."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from normprobe.model.tracing.observation import Observation, ObservedCall, by_position
from normprobe.model.tracing.recording import differs


@dataclass(frozen=True)
class Stack:
    """A list of blocks of which some ran."""

    name: str  # of the list, dotted
    size: int  # how many parameters it has
    calls: tuple[ObservedCall, ...]  # the first call of each block that ran, in order of time
    numbers: tuple[int, ...]  # the place of each of these blocks in the list, from 1

    @property
    def began(self) -> int:
        """When the first block began."""
        return self.calls[0].began

    @property
    def input(self) -> Observation:
        """The hidden state that the first block reads."""
        return stream_in(self.calls[0])

    @property
    def output(self) -> Observation:
        """The hidden state that the last block returns."""
        return stream_out(self.calls[-1])


def find_stacks(model: nn.Module, calls: Iterable[ObservedCall]) -> list[Stack]:
    """Lists of which at least two blocks of one class ran, or the only block.

    A list inside a block is no stack. Blocks must have modules inside: a list of linear layers is a
    projector.
    """
    first: dict[str, ObservedCall] = {}
    for call in calls:
        if call.inputs and call.outputs:
            first.setdefault(call.name, call)
    stacks: list[Stack] = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        if any(holds(stack.name, name) for stack in stacks):
            continue
        prefix = f"{name}." if name else ""
        ran = [
            (first[prefix + key], number, type(block))
            for number, (key, block) in enumerate(module.named_children(), start=1)
            if prefix + key in first and any(True for _ in block.children())
        ]
        classes = Counter(block_class for _, _, block_class in ran)
        if ran and max(classes.values()) >= min(2, len(module)):
            ran.sort(key=lambda block: block[0].began)
            calls, numbers, _ = zip(*ran, strict=True)
            size = sum(parameter.numel() for parameter in module.parameters())
            stacks.append(Stack(name, size, calls, numbers))
    return stacks


def stream_in(call: ObservedCall) -> Observation:
    """The hidden state that a block reads: the first input that has the shape of an output."""
    shapes = [out.tensor_shape for out in call.outputs]
    return next((seen for seen in call.inputs if seen.tensor_shape in shapes), call.inputs[0])


def stream_out(call: ObservedCall) -> Observation:
    """The hidden state that a block returns: the first output of the shape of its input."""
    shape = stream_in(call).tensor_shape
    return next((out for out in call.outputs if out.tensor_shape == shape), call.outputs[0])


def holds(outer: str, inner: str) -> bool:
    """Whether a module is another one or is inside it, by their dotted names."""
    return outer == "" or f"{inner}.".startswith(f"{outer}.")


@dataclass(frozen=True)
class Language:
    """The stack that reads the text."""

    stack: Stack  # the list of decoder layers
    # ``[batch, seq]`` bool, positions of layer 1's input that change with the pixels; None where
    # the image is not in the sequence
    visual: Tensor | None
    # ``[batch, seq]`` bool, positions that change with the words and not with the pixels; with
    # either, where none changes with the words alone (UDOP adds a patch to each word)
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


@dataclass(frozen=True)
class VisualTokens:
    """The visual tokens as the decoder layers read them."""

    states: tuple[Observation, ...]  # the tensors that hold them, the last in time first
    read: int  # the time at which they are read


def visual_tokens(
    calls: Sequence[ObservedCall], stacks: Sequence[Stack], language: Language
) -> VisualTokens:
    """Layer 1's input and all earlier states that hold as many visual tokens beside text.

    Where the image is not in the sequence: the states that the text attends to.
    """
    if language.visual is None:
        attended = list(_attended_states(stacks))
        read = min((time for time, _ in attended), default=0)
        return VisualTokens(tuple(state for time, state in attended if time == read), read)
    read = language.stack.began
    counts = (len(language.stack.input.pixel_changes), int(language.visual.sum()))
    states = (
        state
        for state in states_until(calls, read)
        if len(state.pixel_changes) in counts and state.by_text.any()
    )
    return VisualTokens(tuple(states), read)


def states_until(calls: Sequence[ObservedCall], until: int) -> list[Observation]:
    """The inputs and outputs of all modules up to a time, the last first."""
    seen = [(call.began, state) for call in calls for state in call.inputs]
    seen += [(call.ended, state) for call in calls for state in call.outputs]
    return [state for time, state in sorted(seen, key=lambda s: -s[0]) if time <= until]


def _attended_states(stacks: Iterable[Stack]) -> Iterator[tuple[int, Observation]]:
    """The states that text attends to, with the time at which a block takes them.

    A block that reads text takes them beside its hidden state; they change with the pixels alone.
    """
    for stack in stacks:
        for call in stack.calls if stack.input.by_text.any() else ():
            stream = stream_in(call)
            for state in call.inputs:
                if state is not stream and state.by_pixels.any() and not state.by_text.any():
                    yield call.began, state
