"""Lists of blocks that ran."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from normprobe.model.tracing.observation import Observation, ObservedCall


@dataclass(frozen=True)
class Stack:
    """A list of blocks.

    Attributes:
        name: dotted.
        size: parameters.
        calls: the first call of each block that ran, in order of time.
        numbers: of these blocks in the list, from 1.
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
    def entered(self) -> Observation:
        """The stream that enters the first block."""
        return stream_in(self.calls[0])

    @property
    def left(self) -> Observation:
        """The stream that leaves the last block."""
        return stream_out(self.calls[-1])


def find_stacks(model: nn.Module, calls: Iterable[ObservedCall]) -> list[Stack]:
    """Lists of which two blocks of one class ran, or the only one; a list in a block is no stack.

    The blocks must have modules of their own: a list of linear layers is a projector.
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
    """What a block reads and hands on: the first input in whose shape an output comes."""
    shapes = [out.tensor_shape for out in call.outputs]
    return next((seen for seen in call.inputs if seen.tensor_shape in shapes), call.inputs[0])


def stream_out(call: ObservedCall) -> Observation:
    """The output that has the shape of the stream that came in."""
    shape = stream_in(call).tensor_shape
    return next((out for out in call.outputs if out.tensor_shape == shape), call.outputs[0])


def holds(outer: str, inner: str) -> bool:
    """Whether a module is another one or is inside it, by their dotted names."""
    return outer == "" or f"{inner}.".startswith(f"{outer}.")
