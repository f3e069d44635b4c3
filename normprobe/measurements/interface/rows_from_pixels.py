"""Which rows of the vision stages come from pixels: those that other pixels change.

Before the first layer of a vision encoder no row has seen another. Class and register rows, padded
patches and empty tiles are there the same whatever the pixels are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from normprobe.schema import PADDING, SPECIAL, TOKEN_GROUPS, VISUAL

Codes = NDArray[np.int8]

_VISUAL, _SPECIAL = TOKEN_GROUPS.index(VISUAL), TOKEN_GROUPS.index(SPECIAL)


@dataclass(frozen=True)
class RowsFromPixels:
    """The rows that enter a vision encoder, one after another.

    Attributes:
        groups: ``[rows]`` codes: patches are visual, class and register rows special; padding.
        leading: ``[rows]`` bool, where each tile has its class and register rows.
    """

    groups: Codes
    leading: NDArray[np.bool_]

    def in_stage(self, rows: int) -> Codes | None:
        """The groups of as many rows of a stage behind.

        Returns:
            ``[rows]`` codes; None where padding may have gone into some of them.
        """
        everything, visual = np.ones_like(self.leading), self.groups == _VISUAL
        candidates = everything, ~self.leading, visual
        for kept in candidates:
            if kept.sum() == rows:
                return self.groups[kept]
        # Each row is made of as many of these; or, behind a resampler, of all.
        read = next((kept for kept in candidates if kept.sum() % rows == 0), everything)
        padded = (self.groups[read] == PADDING).any()
        return None if padded else np.full(rows, _VISUAL, dtype=np.int8)


def rows_from_pixels(
    states: Sequence[Tensor], of_other_pixels: Sequence[Tensor]
) -> RowsFromPixels | None:
    """Tell the rows of an image by those of another.

    Args:
        states: ``[..., rows of a tile, hidden]``, one a call of the module that they enter.
        of_other_pixels: the same for other pixels.

    Returns:
        The rows; None where the two cannot be compared, or no row changes.
    """
    shapes = ([state.shape for state in both] for both in (states, of_other_pixels))
    if len({tuple(of_each) for of_each in shapes}) > 1:
        return None
    found: list[tuple[NDArray[Any], NDArray[Any]]] = []
    for state, other in zip(states, of_other_pixels, strict=True):
        moved = (state != other).any(dim=-1).reshape(-1, state.shape[-2]).numpy()
        leading = np.broadcast_to(~np.logical_or.accumulate(moved.any(axis=0)), moved.shape)
        class_rows = leading & moved.any(axis=1, keepdims=True)
        groups = np.where(moved, _VISUAL, np.where(class_rows, _SPECIAL, PADDING))
        found.append((groups.ravel(), leading.ravel()))
    if not any((groups == _VISUAL).any() for groups, _ in found):
        return None
    groups, leading = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return RowsFromPixels(groups.astype(np.int8), leading)
