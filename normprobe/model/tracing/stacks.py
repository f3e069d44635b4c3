"""Stacks: lists of blocks, such as decoder layers, that ran in the forward."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from normprobe.model.tracing.observation import Observation, ObservedCall


@dataclass(frozen=True)
class Stack:
    """A list of blocks of which some ran.

    Attributes:
        name: of the list, dotted.
        size: how many parameters it has.
        calls: the first call of each block that ran, in order of time.
        numbers: the place of each of these blocks in the list, from 1.
    """

    name: str
    size: int
    calls: tuple[ObservedCall, ...]
    numbers: tuple[int, ...]

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
