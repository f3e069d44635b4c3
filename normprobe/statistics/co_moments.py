"""How the angle follows the norm over tokens: moments of their logarithms, merged exactly.

Eq. 13 reads tan(angle) = m sin(phi) / (||x|| + m cos(phi)): under one update size m and one update
angle phi, a token twice as long turns about half as far. In logarithms that is a slope near -1.
"""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.schema import TOKEN_METRICS

_COUNT = "log_tokens"
_MEANS = ("log_norm_mean", "log_angle_mean")
_SQUARES = ("log_norm_m2", "log_angle_m2")
_PRODUCT = "log_norm_log_angle_m11"
CO_MOMENTS = (_COUNT, *_MEANS, *_SQUARES, _PRODUCT)


def co_moments(metrics: NDArray[np.floating[Any]]) -> dict[str, list[float]]:
    """Moments of log ||x||, the norm that enters a layer, and log angle, over some tokens.

    Tokens that do not move have no logarithm and are left out, as are non-finite ones.

    Args:
        metrics: ``[layers, at least len(TOKEN_METRICS), tokens]``, in the order of
            ``schema.TOKEN_METRICS``; layer 0, which has no angle, is not among them.

    Returns:
        Columns named by ``CO_MOMENTS``, one entry a layer: how many tokens count, both means, both
        sums of squared deviations, and the sum of products of deviations. Means are NaN where no
        token counts.
    """
    at = {name: metrics[:, place].astype(np.float64) for place, name in enumerate(TOKEN_METRICS)}
    with np.errstate(divide="ignore", invalid="ignore"):
        entered = at["update_norm"] / at["relative_update"]
        x, y = np.log(entered), np.log(at["angle"])
        counted = np.isfinite(metrics).all(axis=1) & np.isfinite(x) & np.isfinite(y)
        tokens = counted.sum(axis=-1)
        means = [np.where(counted, part, 0.0).sum(axis=-1) / tokens for part in (x, y)]
        dx, dy = (
            np.where(counted, part - mean[:, None], 0.0)
            for part, mean in zip((x, y), means, strict=True)
        )
    sums = [(first * second).sum(axis=-1) for first, second in ((dx, dx), (dy, dy), (dx, dy))]
    return {
        name: column.tolist()
        for name, column in zip(CO_MOMENTS, (tokens, *means, *sums), strict=True)
    }


def norm_angle_relation(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """Correlation and slope of log angle on log norm, over all tokens of the rows.

    Args:
        rows: sample rows with the columns of ``CO_MOMENTS``, and ``by``.
        by: the column that names a row of the result.

    Returns:
        Index ``by``; ``correlation``, and ``slope`` of the least-squares line. NaN where the norms
        or the angles do not differ.
    """
    held = rows[[by, *CO_MOMENTS]].dropna()
    weight = held[_COUNT]
    keys = held[by]
    totals = weight.groupby(keys).sum()
    shifts = []
    for name in _MEANS:
        center = (weight * held[name]).groupby(keys).sum() / totals
        shifts.append(held[name] - keys.map(center))
    first, second = shifts
    # Within the rows, then between them (Chan et al., 1979).
    sxx, syy, sxy = (
        (held[name] + weight * a * b).groupby(keys).sum()
        for name, a, b in (
            (_SQUARES[0], first, first),
            (_SQUARES[1], second, second),
            (_PRODUCT, first, second),
        )
    )
    varies = (sxx > 0) & (syy > 0)
    return pd.DataFrame(
        {
            "correlation": (sxy / np.sqrt(sxx * syy)).where(varies),
            "slope": (sxy / sxx).where(sxx > 0),
        }
    )
