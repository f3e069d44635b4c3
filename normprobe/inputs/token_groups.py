"""The group of every token of a prompt, and which image it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normprobe.data.sample import MEDIA_MARKS, Sample, kind_of
from normprobe.errors import NormprobeError
from normprobe.schema import (
    AUDIO,
    IMAGE,
    IMAGE_NUMBERS,
    PADDING,
    SPECIAL,
    TEXT,
    TOKEN_GROUPS,
    TURN_NUMBERS,
    VIDEO,
    VIDEO_MASK,
    VISUAL,
    VISUAL_MASK,
)
from normprobe.tensors import find_named

if TYPE_CHECKING:
    from transformers import BatchFeature


def token_groups(
    input_ids: Tensor,
    attention_mask: Tensor | None,
    image_token_ids: Sequence[int],
    special_token_ids: Sequence[int],
    video_token_ids: Sequence[int] = (),
    audio_token_ids: Sequence[int] = (),
) -> Tensor:
    """Name the group of every token.

    Every image placeholder counts as visual here. Ids do not tell the structural tokens, which are
    placeholders that pixels do not change: those are found in the model.

    Args:
        input_ids: [batch, seq]. A negative id has no row in an embedding table: it is the
            placeholder of a model whose code says so (Phi-3.5-vision, Ovis2.5), and never text.
        attention_mask: [batch, seq], 0 at padding; ``None`` means that nothing is padding.
        image_token_ids: ids of image placeholders; visual even where the tokenizer calls them
            special.
        special_token_ids: as ``InputBuilder.special_token_ids``.
        video_token_ids: ids of placeholders of a video, likewise whatever the tokenizer calls them.
        audio_token_ids: ids of placeholders of a sound.

    Returns:
        int8 [batch, seq] on the device of ``input_ids``: indices into ``schema.TOKEN_GROUPS``, or
        ``schema.PADDING``.
    """

    def is_one_of(ids: Sequence[int]) -> Tensor:
        return torch.isin(input_ids, torch.tensor(ids, dtype=torch.long, device=input_ids.device))

    groups = torch.full_like(input_ids, TOKEN_GROUPS.index(TEXT), dtype=torch.int8)
    groups[is_one_of(special_token_ids)] = TOKEN_GROUPS.index(SPECIAL)
    groups[is_one_of(image_token_ids) | (input_ids < 0)] = TOKEN_GROUPS.index(VISUAL)
    groups[is_one_of(video_token_ids)] = TOKEN_GROUPS.index(VIDEO)
    groups[is_one_of(audio_token_ids)] = TOKEN_GROUPS.index(AUDIO)
    if attention_mask is not None:
        groups[attention_mask == 0] = PADDING
    return groups


def marked_positions(inputs: Mapping[str, Any], shape: torch.Size) -> Tensor | None:
    """The positions that an input marks as belonging to an image.

    Args:
        inputs: what the model takes; dicts inside it are looked into as well.
        shape: ``[batch, seq]`` of the prompts.

    Returns:
        bool ``[batch, seq]``; None where no input marks positions of the prompts.
    """
    for name, positions in MARKS.items():
        marks = find_named(inputs, name)
        if marks is not None and (name != VISUAL_MASK or marks.shape == shape):
            return positions(marks, shape)
    return None


def by_mask(mask: Tensor, shape: torch.Size) -> Tensor:
    """A mask of visual tokens as bool ``shape``.

    Raises:
        NormprobeError: it is none, such as one that is added to scores.
    """
    if not ((mask == 0) | (mask == 1)).all():
        raise NormprobeError(
            "a mask of visual tokens holds other numbers than 0 and 1",
            "pass bool [batch, seq]: True at the rows of an image",
        )
    return mask.bool().reshape(shape)


def _by_index(indices: Tensor, shape: torch.Size) -> Tensor:
    """``[batch, crops, features]`` positions in the sequence; negative: the feature is not used."""
    flat = indices.reshape(len(indices), -1)
    marked = torch.zeros(shape, dtype=torch.bool, device=flat.device)
    sample, feature = (flat >= 0).nonzero(as_tuple=True)
    marked[sample, flat[sample, feature]] = True
    return marked


def _by_ranges(bounds: list[Tensor], shape: torch.Size) -> Tensor:
    """One ``[images, 2]`` tensor a sample: where the positions of an image start and end."""
    marked = torch.zeros(shape, dtype=torch.bool, device=bounds[0].device)
    for positions, ranges in zip(marked, bounds, strict=True):
        for start, end in ranges.tolist():
            positions[start:end] = True
    return marked


#: By the name of the input: an inputs file, DeepSeek-VL2, Kosmos-2, Molmo, MiniCPM-V.
MARKS: dict[str, Callable[[Any, torch.Size], Tensor]] = {
    VISUAL_MASK: by_mask,
    "images_seq_mask": by_mask,
    "image_embeds_position_mask": by_mask,
    "image_input_idx": _by_index,
    "image_bound": _by_ranges,
}

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
        padding, and samples without images. Where videos come under the name of images,
        ``video_mask`` says which positions, likewise, are a video's.
    """
    from normprobe.inputs.on_device import pixel_inputs

    ids = find_named(inputs, "input_ids")
    alike = any(s.videos for s in samples) and not pixel_inputs(inputs, VIDEO)
    one_each = all(len(s.images) == 1 for s in samples) and not alike
    if ids is None or not pixel_inputs(inputs) or one_each:
        return inputs
    mask = find_named(inputs, "attention_mask")
    mask = torch.ones_like(ids).bool() if mask is None else mask.bool()
    numbers, of_videos = torch.zeros_like(ids), torch.zeros_like(mask)
    for row, sample in enumerate(samples):
        told = (IMAGE, VIDEO) if alike else (IMAGE,)
        media = [(place, p) for place, p in enumerate(sample.pieces) if not isinstance(p, str)]
        kinds = [(place, kind_of(p)) for place, p in media if kind_of(p) in told]
        if not kinds:
            continue
        own = ids[row, mask[row]]
        number_of_position = torch.zeros_like(own)
        for place, _ in kinds[:-1]:
            other = find_named(build([_with_word_behind(sample, place)]), "input_ids")[0]
            number_of_position[_common_length(own, other) :] += 1
        images = torch.tensor([kind == IMAGE for _, kind in kinds])
        numbers[row, mask[row]] = torch.where(images, images.cumsum(0), 0)[number_of_position]
        of_videos[row, mask[row]] = ~images[number_of_position]
    inputs[IMAGE_NUMBERS] = numbers
    if alike:
        inputs[VIDEO_MASK] = of_videos
    return inputs


def _with_word_behind(sample: Sample, place: int) -> Sample:
    """The prompt with all marks, and a word behind one of its pieces."""
    numbered, asked = count(), []
    for turn in sample.turns:
        marked = (p if isinstance(p, str) else MEDIA_MARKS[kind_of(p)] for p in turn.pieces)
        asked.append("".join(p + _WORD * (next(numbered) == place) for p in marked))
    *before, prompt = asked
    earlier = [turn._replace(user=text) for turn, text in zip(sample.earlier, before, strict=True)]
    return replace(sample, prompt=prompt, earlier=tuple(earlier))


def with_turn_numbers(
    inputs: BatchFeature,
    samples: Sequence[Sample],
    build: Callable[[Sequence[Sample]], BatchFeature],
) -> BatchFeature:
    """Add ``turn_numbers`` to a batch.

    Returns:
        ``inputs``, with an int tensor [batch, seq]: the number, from 1, of the turn that a token
        belongs to; 0: padding. A turn is what the user says and what the model says to it; what
        stands between two turns counts with the later one.
    """
    ids, mask = (find_named(inputs, name) for name in ("input_ids", "attention_mask"))
    if ids is None:
        return inputs
    mask = torch.ones_like(ids).bool() if mask is None else mask.bool()
    numbers = torch.zeros_like(ids)
    for row, sample in enumerate(samples):
        own = ids[row, mask[row]]
        turns = torch.ones_like(own)
        for place, turn in enumerate(sample.earlier):
            longer = [*sample.earlier]
            longer[place] = turn._replace(reply=f"{turn.reply} {_WORD}")
            other = find_named(build([replace(sample, earlier=tuple(longer))]), "input_ids")[0]
            turns[_common_length(own, other) :] += 1
        numbers[row, mask[row]] = turns
    inputs[TURN_NUMBERS] = numbers
    return inputs


def _common_length(one: Tensor, other: Tensor) -> int:
    """How many tokens two prompts share before they differ."""
    shared = min(len(one), len(other))
    different = (one[:shared] != other[:shared]).nonzero()
    return int(different[0]) if len(different) else shared
