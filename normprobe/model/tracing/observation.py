"""Three forwards side by side: what of each call changes with the pixels, what with the words."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from normprobe.model.tracing.recording import Recording
from normprobe.model.tracing.sketches import Sketch, differs


@dataclass(frozen=True)
class Observation:
    """One tensor in the three forwards; its rows are numbered alike in all."""

    base: Sketch
    other_pixels: Sketch
    other_words: Sketch

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Of the activation."""
        return (*self.base.shape, self.base.width)

    @cached_property
    def by_pixels(self) -> Tensor:
        """Rows that change with the pixels, ``[*shape]`` bool."""
        return self._changed(self.other_pixels)

    @cached_property
    def by_text(self) -> Tensor:
        """Rows that change with the words, ``[*shape]`` bool."""
        return self._changed(self.other_words)

    @cached_property
    def pixel_changes(self) -> Tensor:
        """How the rows that change with the pixels change, ``[rows, projections]``."""
        return self._changes(self.other_pixels, self.by_pixels)

    @cached_property
    def text_changes(self) -> Tensor:
        """How the rows that change with the words alone change, ``[rows, projections]``."""
        return self._changes(self.other_words, self.by_text & ~self.by_pixels)

    @property
    def has_text_rows(self) -> bool:
        """Whether some rows change with the words and not with the pixels."""
        return bool((self.by_text & ~self.by_pixels).any())

    def _changed(self, other: Sketch) -> Tensor:
        if _aligned(self.base, other):
            return differs(self.base, other)
        return torch.ones(self.base.shape, dtype=torch.bool)

    def _changes(self, other: Sketch, rows: Tensor) -> Tensor:
        if not _aligned(self.base, other):
            return self.base.rows[:0]
        return (other.rows - self.base.rows)[rows.flatten()]


@dataclass(frozen=True)
class ObservedCall:
    """One run of one module, in the three forwards; the times are those of the first."""

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


def by_position(rows: Tensor, batch: int, lengths: set[int]) -> Tensor | None:
    """Bring a mask of rows to ``[batch, seq]``: any row of a position counts.

    Residual streams come as ``[batch, seq]``, ``[streams, batch, seq]``, ``[batch, seq, streams]``
    or ``[batch * seq]``.

    Args:
        rows: bool, the leading axes of an activation.
        batch: samples.
        lengths: of the token sequences; another length is taken when none fits.

    Returns:
        bool, or None where the rows are no sequence of this batch.
    """
    shape = tuple(rows.shape)
    for axis in range(len(shape) - 1):
        if shape[axis] == batch and shape[axis + 1] in lengths:
            return (
                rows.movedim((axis, axis + 1), (0, 1)).reshape(*shape[axis : axis + 2], -1).any(2)
            )
    if len(shape) == 1 and shape[0] % batch == 0:
        return rows.reshape(batch, -1)
    if len(shape) > 1 and shape[0] == batch:
        return rows.reshape(*shape[:2], -1).any(2)
    return None
