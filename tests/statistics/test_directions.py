"""Mean directions against plain float64 NumPy that forms every pair."""

from itertools import combinations

import numpy as np
import pytest
import torch
from support.allocations import allocations

from normprobe.schema import MODALITIES, PADDING, SPECIAL, TEXT, TOKEN_GROUPS, VISUAL
from normprobe.statistics import token_metrics as arithmetic
from normprobe.statistics.token_metrics import (
    POOLED_GROUPS,
    Directions,
    cross_modal_cosine,
    directions,
    group_masks,
    mean_of,
    moved,
    pooled_cosine,
    state_of,
    turn_cosines,
    turns_of,
    within_modal_cosine,
)

CODES = {group: code for code, group in enumerate(TOKEN_GROUPS)}


@pytest.fixture(autouse=True, params=["asked", "not asked"])
def _extremes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An accelerator is not asked whether a state is extreme."""
    if request.param == "not asked":
        monkeypatch.setattr(arithmetic, "_scale", arithmetic._scaling)


def states() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(2, 7, 32, generator=random)
    return x, x + torch.randn(2, 7, 32, generator=random) + 0.5


def groups() -> torch.Tensor:
    codes = torch.full((2, 7), CODES[TEXT], dtype=torch.int8)
    codes[:, :3] = CODES[VISUAL]
    codes[:, 3] = CODES[SPECIAL]
    codes[1, 6] = PADDING
    return codes


def directions_of(state: torch.Tensor, masks: torch.Tensor) -> Directions:
    return directions(state_of(state), masks)


def numbers(x: torch.Tensor, h: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """Everything, ``[batch, columns]``."""
    before, after = directions_of(x, masks), directions_of(h, masks)
    turns = mean_of(*turns_of(moved(state_of(x), state_of(h)), masks))
    return torch.cat(
        [
            pooled_cosine(before.groups, after.groups),
            within_modal_cosine(after),
            cross_modal_cosine(mean_of(after.units, after.tokens))[:, None],
            cross_modal_cosine(mean_of(after.centered, after.tokens))[:, None],
            turn_cosines(turns, mean_of(before.units, before.tokens)),
        ],
        dim=1,
    )


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def of_pairs(a: np.ndarray, b: np.ndarray) -> float:
    return float((unit(a) @ unit(b).T).mean())


def expected(x: torch.Tensor, h: torch.Tensor, codes: torch.Tensor) -> list[float]:
    """The same of one sample."""
    a, b = x.double().numpy(), h.double().numpy()
    turn = b - (b * unit(a)).sum(-1, keepdims=True) * unit(a)
    masks = {group: (codes == code).numpy() for group, code in CODES.items()}
    masks["non_visual"] = masks[TEXT] | masks[SPECIAL]
    pooled = [
        float(unit(a[chosen].mean(0)) @ unit(b[chosen].mean(0))) if chosen.any() else np.nan
        for chosen in (masks[group] for group in POOLED_GROUPS)
    ]
    within = [
        np.mean([of_pairs(one[None], other[None]) for one, other in combinations(b[masks[m]], 2)])
        for m in MODALITIES
    ]
    v, t = masks[VISUAL], masks[TEXT]
    common = (unit(b[v]).mean(0) + unit(b[t]).mean(0)) / 2
    return [
        *pooled,
        *within,
        of_pairs(b[v], b[t]),
        of_pairs(unit(b[v]) - common, unit(b[t]) - common),
        of_pairs(turn[v], a[t]),
        of_pairs(turn[t], a[v]),
        of_pairs(turn[v], turn[t]),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_number_agrees_with_all_pairs(dtype: torch.dtype) -> None:
    x, h = (state.to(dtype) for state in states())
    found = numbers(x, h, group_masks(groups()))
    wanted = [expected(x[n].float(), h[n].float(), groups()[n]) for n in range(2)]
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_tokens_that_do_not_turn_have_no_say_where_turns_lean() -> None:
    x, h = states()
    h[:, 0] = x[:, 0]
    found = numbers(x, h, group_masks(groups()))[:, -3:]
    codes = groups()
    codes[:, 0] = PADDING
    wanted = [expected(x[n], h[n], codes[n])[-3:] for n in range(2)]
    np.testing.assert_allclose(found[:, [0, 2]], np.array(wanted)[:, [0, 2]], atol=1e-5)
    found = numbers(x, x.clone(), group_masks(groups()))[:, -3:]
    assert found.isnan().all()


def test_padding_and_overflowed_rows_reach_no_number() -> None:
    x, h = states()
    masks = group_masks(groups())
    clean = numbers(x, h, masks)
    h[1, 6] = float("nan")  # padding
    torch.testing.assert_close(numbers(x, h, masks), clean, equal_nan=True)
    h[0, 0] = float("inf")  # one visual token of sample 0
    dirty = numbers(x, h, masks)
    text = [POOLED_GROUPS.index(group) for group in (TEXT, SPECIAL)]
    torch.testing.assert_close(dirty[:, text], clean[:, text])
    assert torch.isfinite(dirty[0, POOLED_GROUPS.index(VISUAL)])
    rest = expected(x[0, 1:], torch.where(h.isfinite(), h, 0)[0, 1:], groups()[0, 1:])
    after = len(POOLED_GROUPS)
    np.testing.assert_allclose(dirty[0, after : after + 4], rest[after : after + 4], atol=1e-5)


def test_a_row_of_zeros_has_no_direction() -> None:
    x, h = states()
    h[0, 0] = 0
    masks = group_masks(groups())
    found = directions_of(h, masks)
    rest = expected(x[0, 1:], h[0, 1:], groups()[0, 1:])[len(POOLED_GROUPS) :]
    means = (mean_of(sums, found.tokens) for sums in (found.units, found.centered))
    crossed = [cross_modal_cosine(each)[0] for each in means]
    measured = [*within_modal_cosine(found)[0], *crossed]
    np.testing.assert_allclose(measured, rest[:4], atol=1e-5)


def test_one_token_makes_no_pair() -> None:
    _, h = states()
    codes = groups()
    codes[0, 1:3] = CODES[TEXT]
    within = within_modal_cosine(directions_of(h, group_masks(codes)))
    assert torch.isnan(within).tolist() == [[True, False], [False, False]]


@pytest.mark.parametrize("scale", [1e36, 1e-23, 1e-36])
def test_extreme_states_have_the_cosines_of_ordinary_ones(scale: float) -> None:
    x, h = states()
    masks = group_masks(torch.tensor([[CODES[VISUAL]] * 4 + [CODES[TEXT]] * 3] * 2))
    ordinary, extreme = numbers(x, h, masks), numbers(x * scale, h * scale, masks)
    np.testing.assert_allclose(extreme, ordinary, rtol=1e-4, atol=1e-5)


def test_float64_states_are_measured_in_float64() -> None:
    x, h = (state.double() for state in states())
    found = numbers(x, h, group_masks(groups()))
    wanted = [expected(x[n], h[n], groups()[n]) for n in range(2)]
    np.testing.assert_allclose(found, wanted, atol=1e-13)


def test_directions_are_centered_in_the_memory_of_one_state() -> None:
    state = torch.randn(2, 7, 4096, generator=torch.Generator().manual_seed(0))
    masks, read = group_masks(groups()), state_of(state)
    with allocations() as made:
        directions(read, masks)
    # Beside it, nine mean vectors of seven tokens a sample.
    assert made.peak < (1.1 + 10 / 7) * state.nbytes
