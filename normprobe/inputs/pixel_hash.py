"""Digests of what a processor makes of each sample's pictures, clips and sounds.

Two processors, or two versions of one, may make other pixels of the same file: a model then gets
something else, and nothing but this says so.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from xxhash import xxh3_64

from normprobe.data.sample import Sample
from normprobe.inputs.on_device import pixel_inputs
from normprobe.schema import AUDIO, VIDEO, VISUAL
from normprobe.tensors import arrays_as_tensors


def pixel_hashes(samples: Sequence[Sample], inputs: Mapping[str, Any]) -> list[str | None]:
    """16 hex digits a sample, whatever it is batched with.

    None: it has no picture, clip or sound; or its pixels lie among those of other samples, in a
    layout that does not say whose they are.
    """
    inputs = arrays_as_tensors(dict(inputs))
    held = {
        group: [len(getattr(sample, name)) for sample in samples]
        for group, name in ((VISUAL, "images"), (VIDEO, "videos"), (AUDIO, "audios"))
    }
    digests = [xxh3_64() for _ in samples]
    known = [any(counts) for counts in zip(*held.values(), strict=True)]
    for group, counts in held.items():
        for name, value in sorted(pixel_inputs(inputs, group).items() if any(counts) else ()):
            shares = _shares(value, counts, _rows_by_grid(inputs, group))
            for place, count in enumerate(counts):
                if shares is None:
                    known[place] &= not count
                elif count:
                    digests[place].update(name.encode())
                    _add(digests[place], shares[place])
    return [
        digest.hexdigest() if told else None for digest, told in zip(digests, known, strict=True)
    ]


def pixel_digest(inputs: Mapping[str, Any]) -> str | None:
    """16 hex digits of all pictures, clips and sounds of a batch; None: it holds none."""
    digest, held = xxh3_64(), False
    for group in (VISUAL, VIDEO, AUDIO):
        for name, value in sorted(pixel_inputs(inputs, group).items()):
            digest.update(name.encode())
            _add(digest, value)
            held = True
    return digest.hexdigest() if held else None


def _rows_by_grid(inputs: Mapping[str, Any], group: str) -> list[int]:
    """How many rows of patches each image or clip has where all lie in one list; else empty."""
    kind = {VISUAL: "image"}.get(group, group)
    names = (f"{kind}_grid_{axes}" for axes in ("thw", "hws", "hw"))
    grid = next((inputs[name] for name in names if inputs.get(name) is not None), None)
    return grid.prod(dim=-1).tolist() if isinstance(grid, Tensor) and grid.dim() == 2 else []


def _shares(value: Any, counts: Sequence[int], rows: Sequence[int]) -> list[Any] | None:
    """The part of an input that belongs to each sample; None: nobody knows."""
    if isinstance(value, Mapping):
        return [value] if len(counts) == 1 else None
    length = len(value)
    if rows and sum(rows) == length:  # by image, then by sample
        ends = [0, *accumulate(rows)]
        value = [value[a:b] for a, b in pairwise(ends)]
        length = len(rows)
    if length == sum(counts):
        ends = [0, *accumulate(counts)]
        return [value[a:b] for a, b in pairwise(ends)]
    if length == len(counts):
        return [value[place : place + 1] for place in range(length)]
    return [value] if len(counts) == 1 else None


def _add(digest: xxh3_64, value: Any) -> None:
    """Add each tensor, without what pads it to the others of its batch."""
    for tensor in _tensors(value):
        for part in tensor:
            trimmed = _without_padding(part)
            digest.update(f"{trimmed.dtype} {list(trimmed.shape)}".encode())
            digest.update(trimmed.contiguous().flatten().view(torch.uint8).numpy().data)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Those of a list or mapping, each with one row a picture or tile."""
    if isinstance(value, Tensor):
        yield value.detach().cpu() if value.dim() > 1 else value.detach().cpu()[None]
    elif isinstance(value, Mapping):
        for name in sorted(value):
            yield from _tensors(value[name])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _without_padding(values: Tensor) -> Tensor:
    """Without the zeros at the end of each axis; Molmo pads with -1."""
    held = (values != 0) & (values != -1)
    for axis in range(values.dim()):
        others = [other for other in range(values.dim()) if other != axis]
        filled = held.any(dim=others) if others else held
        length = int(filled.nonzero().max()) + 1 if filled.any() else 0
        values, held = values.narrow(axis, 0, length), held.narrow(axis, 0, length)
    return values
