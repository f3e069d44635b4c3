"""Three forwards side by side: which vectors change with the pixels, which with the words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from normprobe.errors import NormprobeError
from normprobe.model.tracing.recording import Recording, Sketch, differs

#: A tensor with fewer numbers than this share of the largest holds no pixels (a robot's state).
_PIXEL_SHARE = 1 / 16


def other_pixels(inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same inputs with the pixels shuffled and negated, or None where there are no pixels.

    Floating-point tensors are pixels. Zeros stay: an empty tile means that there is no tile.
    Columns of whole numbers stay in patches: in the first two Pix2Struct stores where a patch is.
    """
    sizes = {name: _float_numbers(value) for name, value in inputs.items()}
    largest = max(sizes.values(), default=0)
    if not largest:
        return None
    generator = torch.Generator().manual_seed(0)
    return {
        name: _shuffled(value, generator) if sizes[name] >= _PIXEL_SHARE * largest else value
        for name, value in inputs.items()
    }


def _float_numbers(value: Any) -> int:
    """How many numbers of a value may be pixels: no masks, places or zeros."""
    if isinstance(value, Tensor):
        return int(_free(value).sum())
    return sum(map(_float_numbers, value)) if isinstance(value, list | tuple) else 0


def _free(tensor: Tensor) -> Tensor:
    """Which numbers may be changed, bool in the shape of the tensor."""
    if not tensor.is_floating_point() or not tensor.dim():
        return torch.zeros_like(tensor, dtype=torch.bool)
    whole = tensor == tensor.round()
    if tensor.dim() > 3:  # a picture, whose margins may be white, or a mask
        return (tensor != 0) & ~whole.all()
    column_is_whole = whole.reshape(-1, tensor.shape[-1]).all(0)
    return (tensor != 0) & ~column_is_whole


def _shuffled(value: Any, generator: torch.Generator) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_shuffled(item, generator) for item in value)
    if not isinstance(value, Tensor):
        return value
    free = _free(value)
    numbers = value[free]
    order = torch.randperm(len(numbers), generator=generator).to(value.device)
    changed = value.clone()
    changed[free] = -numbers[order]  # negated, because an image of one colour is its own shuffle
    return changed


def other_words(
    inputs: Mapping[str, Any],
    read: Sequence[str],
    influenced: Mapping[tuple[int, ...], Tensor],
    text_ids: Sequence[int] | None = None,
) -> tuple[dict[str, Any], list[Tensor]]:
    """The same inputs with each ordinary word replaced by another word of the same prompt.

    Its position tells whether a word is ordinary: it is neither an image token nor beside one
    (begin and end of image), nor at either end of the prompt (begin and end of sequence, padding),
    and its id is at no such position either. So no id with a special meaning is moved.

    Args:
        inputs: what the processor returned.
        read: names of the ids ``[batch, seq]`` among them.
        influenced: by the shape of the ids, the positions that change with the pixels.
        text_ids: ordinary ids, when the prompt is too short to find two of them.

    Returns:
        The inputs, and for each ids tensor which positions were replaced, ``[batch, seq]``.
    """
    changed, replaced = dict(inputs), []
    for name in read:
        ids = inputs[name].cpu()
        if text_ids is None:
            chosen = _ordinary(ids, influenced[tuple(ids.shape)])
        else:
            chosen = torch.isin(ids, torch.tensor(text_ids)) & ~influenced[tuple(ids.shape)]
        words = sorted(set(ids[chosen].tolist() if text_ids is None else text_ids))
        if not chosen.any() or len(words) < 2:
            continue
        following = dict(zip(words, [*words[1:], words[0]], strict=True))
        changed[name] = inputs[name].clone()
        changed[name][chosen] = inputs[name].new_tensor(
            list(map(following.get, ids[chosen].tolist()))
        )
        replaced.append(chosen)
    if not replaced:
        raise NormprobeError(
            f"no text to change: expected ids [batch, seq] with two different ordinary words among "
            f"the inputs, received {', '.join(inputs) or 'none'}",
            "use a longer prompt, or name a few ordinary ids with text_ids",
        )
    return changed, replaced


def _ordinary(ids: Tensor, influenced: Tensor) -> Tensor:
    """Positions of ordinary words, ``[batch, seq]`` bool; the ends only if there are no others."""
    chosen = torch.zeros_like(influenced)
    if not _are_words(ids):
        return chosen
    beside = influenced | torch.isin(ids, ids[influenced])
    beside[:, 1:] |= beside[:, :-1].clone()
    beside[:, :-1] |= beside[:, 1:].clone()
    ends = beside.clone()
    ends[:, [0, -1]] = True
    for avoided in (ends, beside):
        chosen = ~torch.isin(ids, ids[avoided])
        if len(set(ids[chosen].tolist())) > 1:
            break
    return chosen


def _are_words(ids: Tensor) -> bool:
    """Whether ids can be words: a mask has two or three values, position ids count upwards."""
    return len(set(ids.flatten().tolist())) > 3 and not bool((ids.diff(dim=1) == 1).all())


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
    """One run of one module in the three forwards; see ``recording.Call``."""

    name: str  # of the module, dotted
    began: int  # the time in the first forward
    ended: int  # likewise
    inputs: tuple[Observation, ...]  # the floating-point tensors that the module took
    outputs: tuple[Observation, ...]  # those that it returned
    reads_ids: tuple[str, ...]  # names of the model's inputs of token ids that it took


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
