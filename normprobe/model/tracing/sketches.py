"""A few numbers in place of each row of an activation, enough to recognise the row elsewhere.

A sketch is linear: the sketch of a difference is the difference of two sketches. What a model adds
to a row whatever the pixels are (a position, a placeholder's embedding) cancels in the difference
of two forwards.
"""

from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor

#: Random projections kept of each row. Two unrelated rows agree by chance once in 1e13.
PROJECTIONS = 8
#: Narrower axes are joined with the one before, so that a sketch is smaller than what it replaces.
NARROWEST_ROW = 16

#: Rows that point the same way: the bound on 1 - cos^2, above what bfloat16 rounds.
SAME_DIRECTION = 2e-4
#: Moments that agree, relative.
_SAME_MOMENT = 1e-4
#: At most so many rows are looked for; a share of them is as good as the share of all.
_SAMPLED_ROWS = 512
#: Larger numbers are masks, infinities and no activations; they would drown the others.
_LARGEST = 1e9
#: Numbers converted to float32 at a time.
_CHUNK = 2**22


@dataclass(frozen=True)
class Sketch:
    """What is kept of one tensor.

    Attributes:
        shape: the leading axes, ``[*shape, width]`` is the tensor.
        width: of a row.
        rows: ``[rows, PROJECTIONS]`` float32 on the host; their norm is near that of the row.
        moments: ``[rows, 3]``: sums of absolute values, squares and fourth powers.
        resolution: relative changes below this are rounding.
    """

    shape: tuple[int, ...]
    width: int
    rows: Tensor
    moments: Tensor
    resolution: float


def sketch(tensor: Tensor) -> Sketch:
    """Sketch a floating-point tensor of at least one axis."""
    shape = tuple(tensor.shape)
    leading = max(len(shape) - 1, 0)
    while leading and prod(shape[leading:]) < NARROWEST_ROW:
        leading -= 1
    width = prod(shape[leading:])
    rows = tensor.detach().reshape(prod(shape[:leading]), width)
    directions = _directions(width).to(tensor.device)
    parts = [
        _reduced(rows[start : start + max(1, _CHUNK // max(width, 1))].float(), directions)
        for start in range(0, len(rows), max(1, _CHUNK // max(width, 1)))
    ]
    numbers = torch.cat(parts).cpu() if parts else torch.zeros(0, PROJECTIONS + 3)
    return Sketch(
        shape[:leading],
        width,
        numbers[:, :PROJECTIONS],
        numbers[:, PROJECTIONS:],
        resolution=max(1e-5, torch.finfo(tensor.dtype).eps / 8),
    )


def _reduced(rows: Tensor, directions: Tensor) -> Tensor:
    rows = torch.where(rows.abs() < _LARGEST, rows, 0.0)
    moments = [rows.abs().sum(1), rows.square().sum(1), rows.pow(4).sum(1)]
    return torch.cat([rows @ directions, torch.stack(moments, 1)], dim=1)


def _directions(width: int) -> Tensor:
    """The same for every row of a width, in every forward."""
    generator = torch.Generator().manual_seed(width)
    deviation = torch.full((width, PROJECTIONS), PROJECTIONS**-0.5)
    return torch.normal(0.0, deviation, generator=generator)


def differs(first: Sketch, second: Sketch) -> Tensor:
    """Which rows of two tensors of one shape differ: ``[*shape]`` bool."""
    norm = partial(torch.linalg.vector_norm, dim=1)
    distance = norm(first.rows - second.rows)
    size = torch.maximum(norm(first.rows), norm(second.rows))
    differing: Tensor = distance > first.resolution * size
    return differing.reshape(first.shape)


def share_found(wanted: Tensor, among: Tensor) -> float:
    """The share of rows that are there, up to a factor a row.

    Args:
        wanted: ``[rows, PROJECTIONS]``, no row zero.
        among: ``[others, PROJECTIONS]``.
    """
    misfits = _misfits(wanted, among)
    return float((misfits < SAME_DIRECTION).float().mean()) if len(misfits) else 0.0


def misfit(wanted: Tensor, among: Tensor) -> float:
    """How far rows are from the nearest of others: the median of 1 - cos^2, infinite for none."""
    misfits = _misfits(wanted, among)
    return float(misfits.median()) if len(misfits) else float("inf")


def _misfits(wanted: Tensor, among: Tensor) -> Tensor:
    if not len(wanted) or not len(among):
        return torch.zeros(0)
    step = -(-len(wanted) // _SAMPLED_ROWS)
    unit_among = torch.nn.functional.normalize(among.double(), dim=1)
    unit_wanted = torch.nn.functional.normalize(wanted[::step].double(), dim=1)
    return torch.stack([1 - (unit_among @ row).square().max() for row in unit_wanted])


def same_numbers(first: Tensor, second: Tensor) -> bool:
    """Whether two sets of rows hold the same numbers in any grouping, up to one factor.

    Args:
        first: moments of rows, ``[rows, 3]``; the caller sees to it that both hold as many numbers.
        second: ``[others, 3]``.
    """
    ratios = []
    for moments in (first, second):
        absolute, square, fourth = moments.double().sum(0).tolist()
        if not square > 0:
            return False
        ratios.append((absolute / square**0.5, fourth / square**2))
    return all(abs(a - b) <= _SAME_MOMENT * abs(a) for a, b in zip(*ratios, strict=True))
