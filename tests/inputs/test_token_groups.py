"""Groups by token id, and padding by the attention mask alone."""

import pytest
import torch

from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.token_groups import token_groups
from normprobe.schema import AUDIO, PADDING, SPECIAL, TEXT, TOKEN_GROUPS, VIDEO, VISUAL

V, S, T, F, A, P = (
    *(TOKEN_GROUPS.index(group) for group in (VISUAL, SPECIAL, TEXT, VIDEO, AUDIO)),
    PADDING,
)


# Ids: 1 begin, 2 end, 9 image, 10 video, 11 and -10 sound, 0 padding; 5 to 8 text.
@pytest.mark.parametrize(
    ("ids", "mask", "expected"),
    [
        ([1, 9, 9, 5, 2, 0], [1, 1, 1, 1, 1, 0], [S, V, V, T, S, P]),
        ([0, 1, 9, 9, 5, 2], [0, 1, 1, 1, 1, 1], [P, S, V, V, T, S]),
        ([1, 9, 5, 2, 2, 2], [1, 1, 1, 1, 0, 0], [S, V, T, S, P, P]),  # padded with the end token
        ([1, 9, 5, 2, 0, 9], None, [S, V, T, S, S, V]),
        ([1, -1, -1, 5, -2, -100], [1, 1, 1, 1, 1, 0], [S, V, V, T, V, P]),  # never text
        ([5, 6, 7, 8, 5, 6], [1, 1, 1, 1, 1, 1], [T] * 6),
        ([1, 9, 10, 5, 11, 10], [1, 1, 1, 1, 1, 0], [S, V, F, T, A, P]),
        ([1, -10, -1, 5, 10, 10], None, [S, A, V, T, F, F]),
    ],
)
def test_token_groups(ids, mask, expected):
    groups = token_groups(
        torch.tensor([ids]),
        None if mask is None else torch.tensor([mask]),
        image_token_ids=[9],
        special_token_ids=[0, 1, 2, 9, 10, 11],
        video_token_ids=[10],
        audio_token_ids=[11, -10],
    )
    assert groups.dtype == torch.int8
    assert groups.tolist() == [expected]


def test_token_groups_without_any_ids():
    assert token_groups(torch.tensor([[1, 2]]), None, [], []).tolist() == [[T, T]]


def test_token_groups_of_a_real_batch(specimen_processor, samples):
    inputs = InputBuilder(specimen_processor).build(samples)
    groups = token_groups(
        inputs["input_ids"],
        inputs["attention_mask"],
        [specimen_processor.tokenizer.convert_tokens_to_ids("<image>")],
        InputBuilder(specimen_processor).special_token_ids,
    )
    assert (groups == V).sum(dim=1).tolist() == [64] * 4
    assert ((groups == P) == (inputs["attention_mask"] == 0)).all()
