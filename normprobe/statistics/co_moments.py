"""How norm, update and angle of tokens go together: moments of their logarithms, merged exactly.

Eq. 13 reads tan(angle) = m sin(phi) / (||x|| + m cos(phi)): under one update size m and one update
angle phi, a token twice as long turns about half as far. In logarithms that is a slope near -1; and
an update that is decoupled from ||x|| has a slope of 0.
"""

from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normprobe.schema import TOKEN_METRICS

#: ||x||, the norm that enters a layer; ||D||, the size of the update; the angle between x and h.
LOGARITHMS = ("log_norm", "log_update", "log_angle")
LOG_TOKENS = "log_tokens"


def product_of(first: str, second: str) -> str:
    """The column with the sum of products of deviations of two of ``LOGARITHMS``."""
    return "_".join(sorted((first, second), key=LOGARITHMS.index)) + "_m11"


PRODUCTS = tuple(
    product_of(first, second) for first, second in combinations_with_replacement(LOGARITHMS, 2)
)
CO_MOMENTS = (LOG_TOKENS, *(f"{name}_mean" for name in LOGARITHMS), *PRODUCTS)


def co_moments(metrics: NDArray[np.floating[Any]]) -> dict[str, list[float]]:
    """Moments of the logarithms of some tokens.

    Tokens that do not move have no logarithm and are left out, as are non-finite ones.

    Args:
        metrics: ``[layers, at least len(TOKEN_METRICS), tokens]``, in the order of
            ``schema.TOKEN_METRICS``; layer 0, which has no angle, is not among them.

    Returns:
        Columns named by ``CO_MOMENTS``, one entry a layer: how many tokens count, the mean of each
        logarithm, and for each pair of them the sum of products of deviations, a pair of the same
        being its sum of squares. Means are NaN where no token counts.
    """
    update, relative, angle = (
        metrics[:, TOKEN_METRICS.index(name)].astype(np.float64)
        for name in ("update_norm", "relative_update", "angle")
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log([update / relative, update, angle])  # [logarithms, layers, tokens]
        counted = np.isfinite(metrics).all(axis=1) & np.isfinite(logs).all(axis=0)
        tokens = counted.sum(axis=-1)
        means = np.where(counted, logs, 0.0).sum(axis=-1) / tokens
        deviations = np.where(counted, logs - means[..., None], 0.0)
    sums = np.einsum("ilt,jlt->ijl", deviations, deviations)
    pairs = combinations_with_replacement(range(len(LOGARITHMS)), 2)
    columns = [tokens, *means, *(sums[pair] for pair in pairs)]
    return {name: column.tolist() for name, column in zip(CO_MOMENTS, columns, strict=True)}
