"""Correlation and slope from merged moments, against NumPy over all tokens at once."""

import numpy as np
import pandas as pd
import pytest

from normprobe.schema import TOKEN_METRICS
from normprobe.statistics.co_moments import CO_MOMENTS, co_moments, norm_angle_relation

TOKENS = 400


def metrics(seed: int = 0) -> np.ndarray:
    """``[layers, metrics, tokens]`` where only what enters the moments means anything."""
    random = np.random.default_rng(seed)
    norm = random.lognormal(2, 1, (2, TOKENS))
    made = np.ones((2, len(TOKEN_METRICS), TOKENS))
    made[:, TOKEN_METRICS.index("update_norm")] = 3.0
    made[:, TOKEN_METRICS.index("relative_update")] = 3.0 / norm
    made[:, TOKEN_METRICS.index("angle")] = norm**-0.8 * random.lognormal(0, 0.3, norm.shape)
    return made


def rows_of(parts: list[np.ndarray]) -> pd.DataFrame:
    return pd.concat([pd.DataFrame({"layer": [1, 2], **co_moments(part)}) for part in parts])


def by_hand(values: np.ndarray) -> tuple[float, float]:
    norm = (
        values[TOKEN_METRICS.index("update_norm")] / values[TOKEN_METRICS.index("relative_update")]
    )
    x, y = np.log(norm), np.log(values[TOKEN_METRICS.index("angle")])
    return np.corrcoef(x, y)[0, 1], np.polyfit(x, y, 1)[0]


@pytest.mark.parametrize("ends", [[], [1], [100, 101, 399]])
def test_any_split_gives_the_correlation_of_all_tokens(ends: list[int]) -> None:
    values = metrics()
    table = norm_angle_relation(rows_of(np.split(values, ends, axis=-1)), "layer")
    for layer in (1, 2):
        correlation, slope = by_hand(values[layer - 1])
        assert table.loc[layer, "correlation"] == pytest.approx(correlation, rel=1e-9)
        assert table.loc[layer, "slope"] == pytest.approx(slope, rel=1e-9)
        assert -0.99 < correlation < -0.8


def test_tokens_that_stand_still_or_overflow_are_left_out() -> None:
    values = metrics()
    values[:, TOKEN_METRICS.index("angle"), :3] = 0
    values[:, TOKEN_METRICS.index("norm"), 3] = np.inf
    row = rows_of([values])
    assert row["log_tokens"].tolist() == [TOKENS - 4] * 2
    table = norm_angle_relation(row, "layer")
    assert table.loc[1, "correlation"] == pytest.approx(by_hand(values[0, :, 4:])[0], rel=1e-9)


def test_a_sample_without_such_tokens_spoils_no_other() -> None:
    values, still = metrics(), metrics()
    still[:, TOKEN_METRICS.index("angle")] = 0
    assert co_moments(still)["log_tokens"] == [0, 0]
    together = norm_angle_relation(rows_of([values, still]), "layer")
    pd.testing.assert_frame_equal(together, norm_angle_relation(rows_of([values]), "layer"))


def test_tokens_that_do_not_differ_have_no_correlation() -> None:
    one = metrics()[..., :1]
    assert set(co_moments(one)) == set(CO_MOMENTS)
    assert norm_angle_relation(rows_of([one]), "layer").isna().all(axis=None)
