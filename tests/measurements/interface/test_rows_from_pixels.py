"""Which rows count, told by other pixels: two tiles of two class rows and three patches."""

import numpy as np
import torch
from torch import Tensor

from normprobe.measurements.interface.rows_from_pixels import RowsFromPixels, rows_from_pixels
from normprobe.schema import PADDING, SPECIAL, TOKEN_GROUPS, VISUAL

V, S, P = TOKEN_GROUPS.index(VISUAL), TOKEN_GROUPS.index(SPECIAL), PADDING


def tiles(*moved: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """One call, whose rows change where ``moved`` is 1."""
    state = torch.arange(len(moved) * len(moved[0]) * 4.0).reshape(len(moved), -1, 4)
    return [state], [state + torch.tensor(moved)[..., None] * torch.tensor([0, 0, 1, 0])]


def rows_of(*moved: list[int]) -> RowsFromPixels:
    found = rows_from_pixels(*tiles(*moved))
    assert found is not None
    return found


def test_class_rows_come_first_and_padding_is_what_remains() -> None:
    found = rows_of([0, 0, 1, 1, 1], [0, 0, 1, 0, 1])
    np.testing.assert_array_equal(found.groups, [S, S, V, V, V, S, S, V, P, V])


def test_an_empty_tile_has_no_class_row() -> None:
    found = rows_of([0, 0, 1, 1, 1], [0, 0, 0, 0, 0])
    np.testing.assert_array_equal(found.groups, [S, S, V, V, V, P, P, P, P, P])


def test_calls_follow_each_other() -> None:
    (one, other), (two, three) = tiles([0, 1]), tiles([1, 1, 1])
    found = rows_from_pixels([*one, *two], [*other, *three])
    assert found is not None
    np.testing.assert_array_equal(found.groups, [S, V, V, V, V])


def test_stages_behind() -> None:
    padded = rows_of([0, 0, 1, 1, 1], [0, 0, 1, 0, 1])
    np.testing.assert_array_equal(padded.in_stage(10), padded.groups)
    np.testing.assert_array_equal(padded.in_stage(6), [V, V, V, V, P, V])  # class rows dropped
    np.testing.assert_array_equal(padded.in_stage(5), np.full(5, V))  # padding, too
    assert padded.in_stage(3) is None, "one of three pairs may hold the padded patch"
    full = rows_of([0, 0, 1, 1, 1], [0, 0, 1, 1, 1])
    np.testing.assert_array_equal(full.in_stage(3), np.full(3, V))
    np.testing.assert_array_equal(full.in_stage(16), np.full(16, V))  # of a resampler


def test_images_that_cannot_be_compared() -> None:
    states, others = tiles([0, 1, 1])
    assert rows_from_pixels(states, states) is None
    assert rows_from_pixels(states, [others[0][:, :2]]) is None
    assert rows_from_pixels(states, []) is None
