"""Which vectors of a tensor belong to which position of a sequence."""

import pytest
import torch

from normprobe.model.tracing.observation import by_position

BATCH, SEQ, STREAMS = 2, 5, 4
#: Two positions of sample 0, one of sample 1; no row and no column is like another.
THERE = torch.zeros(BATCH, SEQ, dtype=torch.bool)
THERE[[0, 0, 1], [0, 3, 4]] = True
ONE_STREAM = torch.arange(STREAMS) == 2


@pytest.mark.parametrize(
    "mask",
    [
        pytest.param(THERE, id="batch, seq"),
        pytest.param(ONE_STREAM[:, None, None] & THERE, id="streams, batch, seq"),
        pytest.param(THERE[..., None] & ONE_STREAM, id="batch, seq, streams"),
        pytest.param(THERE.flatten(), id="batch * seq"),
    ],
)
@pytest.mark.parametrize("lengths", [{SEQ}, {7, SEQ}])
def test_any_vector_of_a_position_counts(mask: torch.Tensor, lengths: set[int]) -> None:
    found = by_position(mask, BATCH, lengths)
    assert found is not None
    assert found.tolist() == THERE.tolist()


@pytest.mark.parametrize("mask", [THERE, THERE[..., None] & ONE_STREAM])
def test_a_sequence_of_another_length_is_one_of_this_batch_all_the_same(
    mask: torch.Tensor,
) -> None:
    found = by_position(mask, BATCH, {SEQ + 1})
    assert found is not None
    assert found.tolist() == THERE.tolist()


@pytest.mark.parametrize("shape", [(), (2 * SEQ + 1,), (3, SEQ)])
def test_of_another_batch_nothing_is_told(shape: tuple[int, ...]) -> None:
    assert by_position(torch.ones(shape, dtype=torch.bool), BATCH, {SEQ}) is None
