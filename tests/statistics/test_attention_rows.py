"""Rows of attention, and what they give to visual keys, against float64 NumPy."""

import numpy as np
import pytest
import torch

from normprobe.statistics.attention_rows import (
    attention_scores,
    score_gap,
    signal_to_noise,
    visual_attention,
)

HEADS, KEY_HEADS, QUERIES, KEYS, WIDTH = 4, 2, 6, 6, 8
ROWS = [1, 4, 5]


def tensors(dtype=torch.float32):
    random = torch.Generator().manual_seed(0)
    shapes = [(HEADS, QUERIES, WIDTH), (KEY_HEADS, KEYS, WIDTH), (1, QUERIES, KEYS)]
    return [torch.randn(shape, generator=random).to(dtype) for shape in shapes]


def reference(query, key, scaling, added):
    """Every row, one by one."""
    query, key, added = (t.double().numpy() for t in (query, key, added))
    weights = np.empty((HEADS, QUERIES, KEYS))
    for head in range(HEADS):
        for row in range(QUERIES):
            scores = key[head * KEY_HEADS // HEADS] @ query[head, row] * scaling
            scores = scores + added[0, row]
            powers = np.exp(scores - scores.max())
            weights[head, row] = powers / powers.sum()
    return weights


def forbid_later():
    allowed = torch.ones(QUERIES, KEYS, dtype=torch.bool).tril()
    return torch.where(allowed, 0.0, -torch.inf)[None], allowed[None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scaling", [None, 0.3])
@pytest.mark.parametrize("kind", ["causal", "bool mask", "float mask", "bias", "all"])
def test_rows(dtype, scaling, kind):
    query, key, bias = tensors(dtype)
    later, allowed = forbid_later()
    arguments = {"mask": None, "bias": None, "causal": False}
    added = later
    if kind == "causal":
        arguments["causal"] = True
    elif kind == "bool mask":
        arguments["mask"] = allowed
    elif kind == "float mask":
        arguments["mask"] = later
    elif kind == "bias":
        arguments |= {"bias": bias, "causal": True}
        added = later + bias
    else:
        added = torch.zeros_like(later)
    found = attention_scores(query, key, torch.tensor(ROWS), scaling=scaling, **arguments)
    expected = reference(query, key, WIDTH**-0.5 if scaling is None else scaling, added)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.softmax(-1), expected[:, ROWS], atol=1e-6)


def test_a_mask_may_be_longer_than_the_keys():
    query, key, _ = tensors()
    _, allowed = forbid_later()
    longer = torch.nn.functional.pad(allowed, (0, 3))
    rows = torch.tensor(ROWS)
    arguments = {"scaling": None, "bias": None, "causal": False}
    found = attention_scores(query, key, rows, mask=longer, **arguments)
    assert torch.equal(found, attention_scores(query, key, rows, mask=allowed, **arguments))


def test_reduction():
    random = np.random.default_rng(0)
    weights = random.random((HEADS, 3, KEYS))
    weights[0, 1, 2] = 0.0  # masked
    weights /= weights.sum(-1, keepdims=True)
    visual = np.array([True, False, True, True, False, False])
    found = visual_attention(torch.from_numpy(weights), torch.from_numpy(visual))
    on_visual = weights[..., visual]
    part = on_visual / on_visual.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(part > 0, part * np.log(part), 0.0).sum(-1)
    even = np.full((HEADS, 3), 3 / 6)
    even[0, 1] = 2 / 5
    np.testing.assert_allclose(found.share, on_visual.sum(-1), rtol=1e-6)
    np.testing.assert_allclose(found.even_share, even, rtol=1e-6)
    np.testing.assert_allclose(found.entropy, entropy, rtol=1e-5)
    np.testing.assert_allclose(found.by_key, on_visual, rtol=1e-6)


def test_a_row_without_attention_to_visual_keys_has_a_share_but_no_entropy():
    found = visual_attention(torch.tensor([[[0.0, 1.0]]]), torch.tensor([True, False]))
    assert found.share.item() == 0.0
    assert found.entropy.isnan().all()


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ([1.0, 0.0, 0.0, 0.0], 0.4 / 0.2),
        ([1.0, 0.5, 0.0, 0.0], (0.5 / 1.5) / (0.5 / 2.5)),
        ([0.0, 0.0, 1.0, 1.0], 0.2 / 0.3),
    ],
)
def test_signal_to_noise(inside, expected):
    weights = torch.tensor([0.4, 0.2, 0.2, 0.2], dtype=torch.float64)
    found = signal_to_noise(weights, torch.tensor(inside))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("inside", [[0.0, 0.0], [1.0, 1.0]])
def test_a_region_of_no_or_every_token_has_no_signal_to_noise(inside):
    assert np.isnan(signal_to_noise(torch.tensor([0.4, 0.2]), torch.tensor(inside)))


def test_the_score_gap_is_before_the_softmax():
    """Scores of one row; weights are their exponentials up to a factor."""
    scores = torch.tensor([3.0, 1.0, -2.0, 0.5], dtype=torch.float64)
    inside = torch.tensor([1.0, 0.5, 0.0, 0.0])
    expected = (3.0 + 0.5) / 1.5 - (0.5 - 2.0 + 0.5) / 2.5
    assert score_gap(scores, inside) == pytest.approx(expected)
    one = torch.tensor([1.0, 0.0, 0.0, 0.0])
    pair = torch.tensor([3.0, 1.0], dtype=torch.float64)
    assert score_gap(pair, one[:2]) == pytest.approx(
        np.log(signal_to_noise(pair.softmax(0), one[:2]))
    )


@pytest.mark.parametrize(
    ("scores", "inside"),
    [([1.0, 2.0], [0.0, 0.0]), ([1.0, 2.0], [1.0, 1.0]), ([1.0, -np.inf], [1.0, 0.0])],
)
def test_tokens_that_are_not_there_or_not_seen_have_no_score_gap(scores, inside):
    assert np.isnan(score_gap(torch.tensor(scores), torch.tensor(inside)))
