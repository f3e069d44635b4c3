"""Means inside and outside a region, and cosines with a word, against NumPy in float64."""

import numpy as np
import pytest
import torch

from normprobe.statistics.attention_rows import cosines_to_word, region_means


def test_means_are_weighted_by_the_share_of_each_place() -> None:
    by_token, inside = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 0.5, 0.0])
    assert region_means(by_token, inside) == pytest.approx((2 / 1.5, 5 / 1.5))


@pytest.mark.parametrize("inside", [[0.0, 0.0], [1.0, 1.0]])
def test_a_region_of_no_token_or_of_all_has_no_gap(inside: list[float]) -> None:
    signal, noise = region_means(torch.tensor([1.0, 2.0]), torch.tensor(inside))
    assert np.isnan(signal - noise)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cosines_are_means_over_the_tokens_of_the_word(dtype: torch.dtype) -> None:
    states = torch.randn(9, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    word, visual = torch.tensor([6, 8]), torch.tensor([0, 2, 3])
    found = cosines_to_word(states, word, visual)
    rows = states.double().numpy()
    unit = rows / np.sqrt((rows**2).sum(-1, keepdims=True))
    expected = [np.mean([unit[v] @ unit[w] for w in word]) for v in visual]
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_a_state_without_a_direction_has_no_cosine(value: float) -> None:
    states = torch.eye(3)
    states[1] = value
    found = cosines_to_word(states, torch.tensor([0]), torch.tensor([1, 2]))
    assert found[0].isnan()
    assert found[1] == 0


def test_huge_states_do_not_overflow() -> None:
    states = 1e30 * torch.eye(2) + 1e30
    found = cosines_to_word(states, torch.tensor([0]), torch.tensor([1]))
    assert float(found[0]) == pytest.approx(0.8, abs=1e-6)
