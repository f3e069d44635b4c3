"""Three forwards side by side: which vectors change with the pixels, which with the words.

A vector is a tensor along its last axis: ``[*shape, width]`` holds one of ``width`` numbers for
each index of ``[*shape]``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from normprobe.model.tracing.recording import Recording
from normprobe.model.tracing.sketches import Sketch, differs


@dataclass(frozen=True)
class Observation:
    """One tensor in the three forwards."""

    base: Sketch
    other_pixels: Sketch
    other_words: Sketch

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """The shape of the tensor, ``[*shape, width]``."""
        return (*self.base.shape, self.base.width)

    @cached_property
    def by_pixels(self) -> Tensor:
        """Which vectors change with the pixels, ``[*shape]`` bool."""
        return self._changed(self.other_pixels)

    @cached_property
    def by_text(self) -> Tensor:
        """Which vectors change with the words, ``[*shape]`` bool."""
        return self._changed(self.other_words)

    @cached_property
    def pixel_changes(self) -> Tensor:
        """The changes of vectors that change with the pixels, ``[vectors, PROJECTIONS]``."""
        return self._changes(self.other_pixels, self.by_pixels)

    @cached_property
    def text_changes(self) -> Tensor:
        """The changes of vectors that change with words alone, ``[vectors, PROJECTIONS]``."""
        return self._changes(self.other_words, self.by_text & ~self.by_pixels)

    @property
    def has_text(self) -> bool:
        """Whether some vectors change with the words and not with the pixels."""
        return bool((self.by_text & ~self.by_pixels).any())

    def _changed(self, other: Sketch) -> Tensor:
        if _aligned(self.base, other):
            return differs(self.base, other)
        return torch.ones(self.base.shape, dtype=torch.bool)

    def _changes(self, other: Sketch, which: Tensor) -> Tensor:
        if not _aligned(self.base, other):
            return self.base.vectors[:0]
        return (other.vectors - self.base.vectors)[which.flatten()]


@dataclass(frozen=True)
class ObservedCall:
    """One run of one module in the three forwards; see ``recording.Call``.

    Attributes:
        name: of the module, dotted.
        began: the time in the first forward.
        ended: likewise.
        inputs: the floating-point tensors that the module took.
        outputs: those that it returned.
        reads_ids: names of the model's inputs of token ids that it took.
    """

    name: str
    began: int
    ended: int
    inputs: tuple[Observation, ...]
    outputs: tuple[Observation, ...]
    reads_ids: tuple[str, ...]


def observe(base: Recording, pixels: Recording, words: Recording) -> list[ObservedCall]:
    """The calls that all three forwards made, in the order in which they began."""
    return sorted(
        (
            ObservedCall(
                call.name,
                call.began,
                call.ended,
                tuple(_observations(call.inputs, pixels[key].inputs, words[key].inputs)),
                tuple(_observations(call.outputs, pixels[key].outputs, words[key].outputs)),
                call.reads_ids,
            )
            for key, call in base.items()
            if key in pixels and key in words
        ),
        key=lambda call: call.began,
    )


def _observations(
    base: list[Sketch], pixels: list[Sketch], words: list[Sketch]
) -> Iterator[Observation]:
    # A model may pass more tensors in one forward than in another; the first ones correspond.
    for sketches in zip(base, pixels, words, strict=False):
        yield Observation(*sketches)


def _aligned(first: Sketch, second: Sketch) -> bool:
    return (first.shape, first.width) == (second.shape, second.width)


def by_position(mask: Tensor, batch: int, lengths: set[int]) -> Tensor | None:
    """Bring a mask of vectors to ``[batch, seq]``: any vector of a position counts.

    Residual streams come as ``[batch, seq]``, ``[streams, batch, seq]``, ``[batch, seq, streams]``
    or ``[batch * seq]``.

    Returns:
        bool, or None where the vectors are no sequence of this batch.
    """
    shape = tuple(mask.shape)
    for axis in range(len(shape) - 1):
        if shape[axis] == batch and shape[axis + 1] in lengths:
            return (
                mask.movedim((axis, axis + 1), (0, 1)).reshape(*shape[axis : axis + 2], -1).any(2)
            )
    if len(shape) == 1 and shape[0] % batch == 0:
        return mask.reshape(batch, -1)
    if len(shape) > 1 and shape[0] == batch:
        return mask.reshape(*shape[:2], -1).any(2)
    return None
