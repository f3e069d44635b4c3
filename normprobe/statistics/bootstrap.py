"""Confidence by the bootstrap: draw whole units with replacement, thousands of times at once.

Every mean here is a ratio of sums over units. A draw repeats some units and leaves others out, so
all draws are two matrix products (Efron and Tibshirani, 1993, chapters 6 and 13).
"""

import numpy as np
from numpy.typing import NDArray

DRAWS = 1000
LEVEL = 0.95
SEED = 0  # the same rows give the same intervals

#: With fewer units the percentiles are those of a handful of values: intervals come out too narrow.
FEW_UNITS = 20


def draw_weights(units: int, draws: int = DRAWS, seed: int = SEED) -> NDArray[np.float64]:
    """How often each unit is drawn, ``[draws, units]``; each row sums to ``units``."""
    random = np.random.default_rng(seed)
    return random.multinomial(units, np.full(units, 1 / units), size=draws).astype(np.float64)


def ratio_draws(
    weights: NDArray[np.float64],
    numerators: NDArray[np.float64],
    denominators: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The ratio of sums in every draw.

    Args:
        weights: ``[draws, units]`` of ``draw_weights``.
        numerators: ``[units, cells]`` sums of each unit.
        denominators: ``[units, cells]``, likewise.

    Returns:
        ``[draws, cells]``; NaN where a draw holds nothing of a cell.
    """
    with np.errstate(invalid="ignore"):
        ratios: NDArray[np.float64] = (weights @ numerators) / (weights @ denominators)
    return ratios


def percentile_interval(
    draws: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The ends between which ``LEVEL`` of the draws lie.

    Args:
        draws: ``[draws, cells]``; draws without a cell have no say in it.

    Returns:
        Low and high, each ``[cells]``; NaN where no draw holds the cell.
    """
    ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    low, high = np.quantile(draws, ends, axis=0)
    for cell in np.flatnonzero(np.isnan(draws).any(axis=0)):
        held = draws[~np.isnan(draws[:, cell]), cell]
        low[cell], high[cell] = np.quantile(held, ends) if held.size else (np.nan, np.nan)
    return low, high
