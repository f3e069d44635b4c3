"""A few numbers in place of each vector of an activation, enough to recognise it elsewhere.

The vectors of a tensor ``[*shape, width]`` run along its last axis. A sketch is linear: the sketch
of a difference is the difference of two sketches. What a model adds to a vector whatever the pixels
are (a position term, the embedding of a placeholder) cancels in the difference of two forwards.
"""

from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor

#: Random projections kept of each vector. Two unrelated vectors agree by chance once in 1e13.
PROJECTIONS = 8
#: Narrower axes are joined with the one before, so that a sketch is smaller than what it replaces.
NARROWEST_VECTOR = 16

#: Vectors that point the same way: the bound on 1 - cos^2, above what bfloat16 rounds.
SAME_DIRECTION = 2e-4
#: Moments that agree, relative.
_SAME_MOMENT = 1e-4
#: At most this many vectors are looked for: a sample tells the share that is found.
_SAMPLED_VECTORS = 512
#: Larger numbers are no activations but masks or infinities; they would drown the others.
_LARGEST = 1e9
#: Numbers converted to float32 at a time.
_CHUNK = 2**22


@dataclass(frozen=True)
class Sketch:
    """What is kept of one tensor.

    Attributes:
        shape: the leading axes; the tensor is ``[*shape, width]``.
        width: how many numbers a vector has.
        vectors: random projections of each vector, ``[vectors, PROJECTIONS]`` float32 on the CPU;
            their norm is near that of the vector.
        moments: ``[vectors, 3]``: sums of absolute values, squares and fourth powers.
        resolution: relative changes below this are rounding.
    """

    shape: tuple[int, ...]
    width: int
    vectors: Tensor
    moments: Tensor
    resolution: float


def sketch(tensor: Tensor) -> Sketch:
    """Sketch a floating-point tensor of at least one axis."""
    shape = tuple(tensor.shape)
    leading = max(len(shape) - 1, 0)
    while leading and prod(shape[leading:]) < NARROWEST_VECTOR:
        leading -= 1
    width = prod(shape[leading:])
    vectors = tensor.detach().reshape(prod(shape[:leading]), width)
    directions = _directions(width).to(tensor.device)
    at_once = max(1, _CHUNK // max(width, 1))
    parts = [
        _reduced(vectors[start : start + at_once].float(), directions)
        for start in range(0, len(vectors), at_once)
    ]
    numbers = torch.cat(parts).cpu() if parts else torch.zeros(0, PROJECTIONS + 3)
    return Sketch(
        shape[:leading],
        width,
        numbers[:, :PROJECTIONS],
        numbers[:, PROJECTIONS:],
        resolution=max(1e-5, torch.finfo(tensor.dtype).eps / 8),
    )


def _reduced(vectors: Tensor, directions: Tensor) -> Tensor:
    """Projections and moments side by side, ``[vectors, PROJECTIONS + 3]``."""
    vectors = torch.where(vectors.abs() < _LARGEST, vectors, 0.0)
    moments = [vectors.abs().sum(1), vectors.square().sum(1), vectors.pow(4).sum(1)]
    return torch.cat([vectors @ directions, torch.stack(moments, 1)], dim=1)


def _directions(width: int) -> Tensor:
    """Random directions, ``[width, PROJECTIONS]``: the same for a width in every forward."""
    generator = torch.Generator().manual_seed(width)
    deviation = torch.full((width, PROJECTIONS), PROJECTIONS**-0.5)
    return torch.normal(0.0, deviation, generator=generator)


def differs(first: Sketch, second: Sketch) -> Tensor:
    """Which vectors of two tensors of one shape differ: ``[*shape]`` bool."""
    norm = partial(torch.linalg.vector_norm, dim=1)
    distance = norm(first.vectors - second.vectors)
    size = torch.maximum(norm(first.vectors), norm(second.vectors))
    differing: Tensor = distance > first.resolution * size
    return differing.reshape(first.shape)


def share_found(wanted: Tensor, among: Tensor) -> float:
    """The share of vectors that are among others; each may be scaled.

    Args:
        wanted: ``[vectors, PROJECTIONS]``, none of them zero.
        among: ``[others, PROJECTIONS]``.
    """
    misfits = _misfits(wanted, among)
    return float((misfits < SAME_DIRECTION).float().mean()) if len(misfits) else 0.0


def misfit(wanted: Tensor, among: Tensor) -> float:
    """How far vectors are from the nearest of others: the median of 1 - cos^2.

    Infinite where there are no vectors or no others.
    """
    misfits = _misfits(wanted, among)
    return float(misfits.median()) if len(misfits) else float("inf")


def _misfits(wanted: Tensor, among: Tensor) -> Tensor:
    if not len(wanted) or not len(among):
        return torch.zeros(0)
    step = -(-len(wanted) // _SAMPLED_VECTORS)
    unit_among = torch.nn.functional.normalize(among.double(), dim=1)
    unit_wanted = torch.nn.functional.normalize(wanted[::step].double(), dim=1)
    return torch.stack([1 - (unit_among @ vector).square().max() for vector in unit_wanted])


def same_numbers(first: Tensor, second: Tensor) -> bool:
    """Whether two sets of vectors hold the same numbers in any grouping, up to one factor.

    Args:
        first: moments of vectors, ``[vectors, 3]``.
        second: ``[others, 3]``, of as many numbers; their vectors may have another width.
    """
    ratios = []
    for moments in (first, second):
        absolute, square, fourth = moments.double().sum(0).tolist()
        if not square > 0:
            return False
        ratios.append((absolute / square**0.5, fourth / square**2))
    return all(abs(a - b) <= _SAME_MOMENT * abs(a) for a, b in zip(*ratios, strict=True))
