"""Positions of an image, where an input marks them and no token id does."""

import pytest
import torch

from normprobe.inputs.token_groups import marked_positions


@pytest.mark.parametrize(
    "inputs",
    [
        {"images_seq_mask": torch.tensor([[0, 1, 1, 0], [0, 0, 0, 1]])},
        {"image_embeds_position_mask": torch.tensor([[0, 1, 1, 0], [0, 0, 0, 1]])},
        {"image_input_idx": torch.tensor([[[1, -100], [2, -1]], [[3, -1], [-1, -1]]])},
        {"data": {"image_bound": [torch.tensor([[1, 2], [2, 3]]), torch.tensor([[3, 4]])]}},
    ],
)
def test_positions_that_an_input_marks(inputs):
    marked = marked_positions(inputs, torch.Size((2, 4)))
    assert marked.tolist() == [[False, True, True, False], [False, False, False, True]]


def test_no_input_marks_positions():
    inputs = {"input_ids": torch.zeros(1, 2), "image_input_idx": None}
    assert marked_positions(inputs, torch.Size((1, 2))) is None
