"""The arithmetic of one layer against plain float64 NumPy."""

import numpy as np
import pytest
import torch
from support.allocations import allocations

from normprobe.schema import TOKEN_METRICS
from normprobe.statistics import token_metrics as arithmetic
from normprobe.statistics.token_metrics import moved, state_of, token_metrics, token_norms


@pytest.fixture(autouse=True, params=["asked", "not asked"])
def asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """An accelerator is not asked whether a state is extreme."""
    if request.param == "not asked":
        monkeypatch.setattr(arithmetic, "_scale", arithmetic._scaling)
    return bool(request.param == "asked")


def states(scale: float = 1.0, step: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    x = scale * torch.randn(2, 7, 32, generator=random)
    return x, x + step * torch.randn(2, 7, 32, generator=random)


def expected_metrics(x: torch.Tensor, h: torch.Tensor) -> dict[str, np.ndarray]:
    a, b = x.double().numpy(), h.double().numpy()
    length = np.linalg.norm
    update = b - a
    unit = a / length(a, axis=-1, keepdims=True)
    along = (update * unit).sum(-1)
    across = length(update - along[..., None] * unit, axis=-1)
    unit_h = b / length(b, axis=-1, keepdims=True)
    return {
        "norm": length(b, axis=-1),
        "cosine": (unit * unit_h).sum(-1),
        "angle": 2 * np.arctan2(length(unit - unit_h, axis=-1), length(unit + unit_h, axis=-1)),
        "update_norm": length(update, axis=-1),
        "relative_update": length(update, axis=-1) / length(a, axis=-1),
        "update_angle": np.arctan2(across, along),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("scale", "step"), [(1.0, 1.0), (1000.0, 0.5), (0.01, 10.0)])
def test_token_metrics_agree_with_numpy(dtype: torch.dtype, scale: float, step: float) -> None:
    x, h = (state.to(dtype) for state in states(scale, step))
    metrics = token_metrics(x, h)
    expected = expected_metrics(x.float(), h.float())
    for name, measured in zip(TOKEN_METRICS, metrics.numpy(), strict=True):
        np.testing.assert_allclose(measured, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_an_update_almost_along_the_state_keeps_its_direction() -> None:
    """sqrt(||D||^2 - D_par^2) would lose the small orthogonal part to cancellation."""
    x = torch.zeros(1, 1, 8)
    x[..., 0] = 100.0
    h = x.clone()
    h[..., 0] += 10.0
    h[..., 1] += 0.001
    metrics, turn = token_metrics(x, h), moved(state_of(x), state_of(h))
    assert token_norms(turn.perpendicular).item() == pytest.approx(0.001, rel=1e-4)
    assert metrics[2].item() == pytest.approx(np.arctan2(0.001, 110.0), rel=1e-4)


def test_norms_of_half_precision_states_do_not_overflow() -> None:
    massive = torch.full((1, 4), 60_000.0, dtype=torch.float16)
    assert token_norms(massive).item() == pytest.approx(120_000.0, rel=1e-3)


def test_a_layer_that_changes_nothing_turns_nothing() -> None:
    x, _ = states()
    metrics = token_metrics(x, x.clone())
    named = dict(zip(TOKEN_METRICS, metrics, strict=True))
    assert named["angle"].max() == 0
    assert named["update_norm"].max() == 0
    torch.testing.assert_close(named["cosine"], torch.ones(2, 7))


@pytest.mark.parametrize("place", [0, 1, 2], ids=["enters as zero", "leaves as zero", "stays"])
def test_a_zero_vector_has_a_length_and_no_direction(place: int) -> None:
    x, h = states()
    if place == 2:
        h[0, 0] = x[0, 0]
    else:
        (x, h)[place][0, 0] = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = expected_metrics(x, h)
    if place == 2:  # only the update is zero
        expected["update_angle"][0, 0] = np.nan
    found = token_metrics(x, h).numpy()
    for name, measured in zip(TOKEN_METRICS, found, strict=True):
        there = np.where(np.isfinite(expected[name]), expected[name], np.nan)
        np.testing.assert_allclose(measured, there, rtol=1e-4, atol=1e-6, err_msg=name)
    undefined = {name for name, of in zip(TOKEN_METRICS, found, strict=True) if np.isnan(of[0, 0])}
    assert (
        undefined
        == [
            {"cosine", "angle", "relative_update", "update_angle"},
            {"cosine", "angle"},
            {"update_angle"},
        ][place]
    )


# --- states whose squares float32 cannot hold --------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e18, 1e19, 1e36, 1e-13, 1e-23, 1e-36])
def test_extreme_states_are_measured_as_ordinary_ones_are(dtype: torch.dtype, scale: float) -> None:
    x, h = (state.to(dtype) for state in states(scale, scale))
    x[:, :2], h[:, :2] = x[:, :2] / scale, h[:, :2] / scale  # beside ordinary ones
    np.testing.assert_allclose(
        token_norms(x), np.linalg.norm(x.double(), axis=-1), rtol=1e-6, err_msg="norms"
    )
    metrics, turn = token_metrics(x, h), moved(state_of(x), state_of(h))
    expected = expected_metrics(x.float(), h.float())
    for name, measured in zip(TOKEN_METRICS, metrics.numpy(), strict=True):
        np.testing.assert_allclose(measured, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)
    across = np.linalg.norm(turn.perpendicular.double(), axis=-1)
    np.testing.assert_allclose(turn.turn, across, rtol=1e-5)


def test_a_tiny_state_may_leave_as_an_ordinary_one() -> None:
    x, h = states()
    x[:, :2] *= 1e-23
    expected = expected_metrics(x, h)
    for name, measured in zip(TOKEN_METRICS, token_metrics(x, h).numpy(), strict=True):
        np.testing.assert_allclose(measured, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_float64_states_are_measured_in_float64() -> None:
    x, h = (state.double() for state in states(1.0, 1e-6))
    np.testing.assert_allclose(token_norms(x), np.linalg.norm(x, axis=-1), rtol=1e-14)
    expected = expected_metrics(x, h)
    for name, measured in zip(TOKEN_METRICS, token_metrics(x, h).numpy(), strict=True):
        np.testing.assert_allclose(measured, expected[name], rtol=1e-9, err_msg=name)


def test_a_large_state_does_not_change_the_last_bit_of_another() -> None:
    x, h = states(3.0)
    alone = token_metrics(x, h)
    x[0, 0] *= 1e36
    beside = token_metrics(x, h)
    np.testing.assert_array_equal(beside[:, 1], alone[:, 1])
    np.testing.assert_array_equal(beside[:, 0, 1:], alone[:, 0, 1:])


def test_a_state_that_is_not_finite_has_no_number() -> None:
    x, h = states()
    h[0, 0, 3], h[0, 1, 3] = torch.inf, torch.nan
    metrics = token_metrics(x, h)
    assert not torch.isfinite(metrics[0, 0, :2]).any()
    assert torch.isfinite(metrics[:, 0, 2:]).all()


def test_a_layer_is_measured_in_the_memory_of_its_states(asked: bool) -> None:
    """Where it is not asked, both are multiplied by a scale first."""
    x, h = (torch.randn(1, 8, 4096, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    with allocations() as made:
        token_metrics(x, h)
    assert made.peak < (2.1 if asked else 4.1) * x.nbytes
