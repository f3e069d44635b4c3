"""Moments of logarithms, merged over any split, against NumPy over all tokens at once."""

import numpy as np
import pandas as pd
import pytest

from normprobe.schema import TOKEN_METRICS
from normprobe.statistics.resampling import Resampled
from normprobe.statistics.sample_statistics import (
    CO_MOMENTS,
    LOG_TOKENS,
    LOGARITHMS,
    co_moments,
    product_of,
)

TOKENS = 400


def metrics(seed: int = 0) -> np.ndarray:
    """``[layers, metrics, tokens]`` where only what enters the moments means anything."""
    random = np.random.default_rng(seed)
    norm = random.lognormal(2, 1, (2, TOKENS))
    update = norm**0.3 * random.lognormal(0, 0.5, norm.shape)
    made = np.ones((2, len(TOKEN_METRICS), TOKENS))
    made[:, TOKEN_METRICS.index("update_norm")] = update
    made[:, TOKEN_METRICS.index("relative_update")] = update / norm
    made[:, TOKEN_METRICS.index("angle")] = norm**-0.8 * random.lognormal(0, 0.3, norm.shape)
    return made


def rows_of(parts: list[np.ndarray]) -> pd.DataFrame:
    rows = [
        pd.DataFrame({"layer": [1, 2], **co_moments(part)}).assign(sample_id=str(number))
        for number, part in enumerate(parts)
    ]
    return pd.concat(rows, ignore_index=True).assign(image_hash=None)


def merged(rows: pd.DataFrame, first: str, second: str) -> np.ndarray:
    """The covariance in both layers."""
    table = pd.DataFrame({"layer": [1, 2]})
    resampled = Resampled(table, rows, ["layer"])
    names = f"{first}_mean", f"{second}_mean", product_of(first, second)
    return resampled.covariance(*names, tokens=LOG_TOKENS)[0]


def logarithms(values: np.ndarray) -> np.ndarray:
    at = dict(zip(TOKEN_METRICS, values, strict=True))
    return np.log([at["update_norm"] / at["relative_update"], at["update_norm"], at["angle"]])


@pytest.mark.parametrize("ends", [[], [1], [100, 101, 399]])
def test_any_split_gives_the_covariances_of_all_tokens(ends: list[int]) -> None:
    values = metrics()
    rows = rows_of(np.split(values, ends, axis=-1))
    for layer in (0, 1):
        expected = np.cov(logarithms(values[layer]), ddof=0)
        for i, first in enumerate(LOGARITHMS):
            for j, second in enumerate(LOGARITHMS):
                found = merged(rows, *sorted((first, second), key=LOGARITHMS.index))[layer]
                assert found == pytest.approx(expected[i, j], rel=1e-9)


def test_tokens_that_stand_still_or_overflow_are_left_out() -> None:
    values = metrics()
    values[:, TOKEN_METRICS.index("angle"), :2] = 0
    values[:, TOKEN_METRICS.index("update_norm"), 2] = 0
    values[:, TOKEN_METRICS.index("norm"), 3] = np.inf
    rows = rows_of([values])
    assert rows[LOG_TOKENS].tolist() == [TOKENS - 4] * 2
    expected = np.cov(logarithms(values[0, :, 4:]), ddof=0)
    assert merged(rows, "log_norm", "log_angle")[0] == pytest.approx(expected[0, 2], rel=1e-9)


def test_a_sample_without_such_tokens_spoils_no_other() -> None:
    values, still = metrics(), metrics()
    still[:, TOKEN_METRICS.index("angle")] = 0
    assert co_moments(still)[LOG_TOKENS] == [0, 0]
    together = merged(rows_of([values, still]), "log_norm", "log_update")
    alone = merged(rows_of([values]), "log_norm", "log_update")
    np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_the_columns_are_those_that_are_named() -> None:
    assert tuple(co_moments(metrics()[..., :1])) == CO_MOMENTS
