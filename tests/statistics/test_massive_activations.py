"""The largest dimensions of states against plain float64 NumPy."""

import numpy as np
import pytest
import torch

from normprobe.statistics import loud_tokens
from normprobe.statistics.loud_tokens import (
    PEAK_METRICS,
    dimension_shares,
    peaks,
    sequence_scales,
    sinks,
)

WIDTH = 900  # sinks need 400


def states(batch: int = 2, tokens: int = 6, width: int = WIDTH) -> torch.Tensor:
    return torch.randn(batch, tokens, width, generator=torch.Generator().manual_seed(0))


def expected_peaks(h: np.ndarray) -> dict[str, np.ndarray]:
    magnitudes = np.sort(np.abs(h), axis=-1)[..., ::-1]
    shares = magnitudes**2 / (h**2).sum(-1, keepdims=True)
    ratio = magnitudes[..., 0] / np.median(magnitudes, axis=-1)
    return {
        "top1_share": shares[..., 0],
        "top10_share": shares[..., :10].sum(-1),
        "peak": magnitudes[..., 0],
        "peak_to_token_median": ratio,
        "peak_dimension": np.abs(h).argmax(-1),
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("width", [7, 128, WIDTH])
def test_peaks_agree_with_numpy(dtype: torch.dtype, scale: float, width: int) -> None:
    h = (scale * states(width=width)).to(dtype)
    expected = expected_peaks(h.double().numpy())
    for name, found in zip(PEAK_METRICS, peaks(h).numpy(), strict=True):
        np.testing.assert_allclose(found, expected[name], rtol=1e-5, err_msg=name)


@pytest.fixture(params=["selected", "sorted"])
def _median(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the CPU, and as on a GPU."""
    if request.param == "sorted":
        monkeypatch.setattr(loud_tokens, "_median", loud_tokens._median_by_sorting)


@pytest.mark.usefixtures("_median")
def test_nothing_but_nan_has_no_median() -> None:
    found = sequence_scales(torch.full((1, 2, 3), torch.nan), torch.ones(1, 2, dtype=torch.bool))
    assert found[0, 0].isnan()


@pytest.mark.usefixtures("_median")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_scales_of_sequences_agree_with_numpy(dtype: torch.dtype, scale: float) -> None:
    h = (scale * states(3, 5, 7)).to(dtype)
    counted = torch.ones(3, 5, dtype=torch.bool)
    counted[1, 3:] = counted[2, :2] = False  # padding on either side
    h[1, 3:], h[2, 0], h[2, 4, 3] = 1e4, torch.nan, torch.inf  # not finite: left out
    for sample, found in enumerate(sequence_scales(h, counted).numpy()):
        tokens = h[sample, counted[sample]].double().numpy()
        kept = tokens[np.isfinite(tokens).all(-1)]
        lower = np.sort(np.abs(kept), axis=None)[(kept.size - 1) // 2]
        np.testing.assert_allclose(found, [lower, np.sqrt((kept**2).sum())], rtol=1e-5)


@pytest.mark.parametrize("scale", [1e25, 1e-25])
def test_squares_neither_overflow_nor_vanish(scale: float) -> None:
    large, ordinary = peaks(states() * scale), peaks(states())
    for name in ("top1_share", "top10_share", "peak_to_token_median"):
        place = PEAK_METRICS.index(name)
        torch.testing.assert_close(large[place], ordinary[place], rtol=1e-4, atol=0.0)
    everything = torch.ones(2, 6, dtype=torch.bool)
    expected = sequence_scales(states(), everything) * scale
    torch.testing.assert_close(sequence_scales(states() * scale, everything), expected)


def test_a_zero_state_has_no_shares() -> None:
    found = dict(zip(PEAK_METRICS, peaks(torch.zeros(1, 1, 8)).flatten().tolist(), strict=True))
    assert np.isnan(found["top1_share"]) and np.isnan(found["peak_to_token_median"])
    assert found["peak"] == 0.0


# --- sinks --------------------------------------------------------------------------------------


def expected_sinks(h: np.ndarray, counted: np.ndarray) -> np.ndarray:
    ratios = np.abs(h) / np.sqrt((h**2).mean(-1, keepdims=True))
    found = np.zeros(h.shape[:2])
    for sample, sample_ratios in enumerate(ratios):
        first = np.flatnonzero(counted[sample])[0]
        dimensions = np.flatnonzero(sample_ratios[first] >= 20)
        for token in range(h.shape[1]):
            found[sample, token] = any(sample_ratios[token, d] >= 20 for d in dimensions)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sinks_share_a_dimension_with_the_first_token(dtype: torch.dtype) -> None:
    h = states()
    counted = torch.ones(2, 6, dtype=torch.bool)
    counted[1, :2] = False  # padding on the left
    h[0, 0, [3, 40]] = torch.tensor([100.0, -100.0])
    h[0, 2, 40] = 90.0  # in one of its dimensions
    h[0, 3, 41] = 90.0  # in another one: no sink
    h[0, 4, 3] = 10.0  # not large enough
    h[1, 0, 7] = 200.0  # padding opens no dimension
    h[1, 2, 8] = 200.0
    h[1, 4, 7] = 200.0
    h[1, 5, 8] = -200.0
    h = h.to(dtype)
    found = sinks(h, counted)
    assert found.tolist() == [[1, 0, 1, 0, 0, 0], [0, 0, 1, 0, 0, 1]]
    np.testing.assert_array_equal(found, expected_sinks(h.double().numpy(), counted.numpy()))


def test_ordinary_states_have_no_sinks() -> None:
    assert not sinks(states(), torch.ones(2, 6, dtype=torch.bool)).any()
    small = torch.zeros(1, 2, 64)
    small[..., 0] = 1000.0
    assert not sinks(small, torch.ones(1, 2, dtype=torch.bool)).any()


# --- dimensions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 1e25])
def test_dimensions_of_a_group(dtype: torch.dtype, scale: float) -> None:
    h = (scale * states()).to(dtype)
    h[0, 1, 17] *= 200
    masks = torch.zeros(2, 3, 6, dtype=torch.bool)
    masks[:, 0, :3] = True
    masks[:, 1, 3:5] = True
    h[1, 1] = torch.nan  # left out
    h[1, 2] = 0.0
    dimensions, shares = dimension_shares(h, masks)
    for sample, group, tokens in [(0, 0, [0, 1, 2]), (1, 0, [0]), (0, 1, [3, 4]), (1, 1, [3, 4])]:
        chosen = h[sample, tokens].double().numpy()
        expected = (chosen**2).sum(0) / (chosen**2).sum()
        order = np.argsort(-expected)[:10]
        np.testing.assert_allclose(shares[sample, group], expected[order], rtol=1e-5)
        np.testing.assert_allclose(
            expected[dimensions[sample, group].numpy()], expected[order], rtol=1e-5
        )
    assert dimensions[0, 0, 0] == 17
    assert shares[:, 2].isnan().all()
