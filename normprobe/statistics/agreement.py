"""How far measured numbers are from the same numbers on another way."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

#: By quantity the largest difference, or in words why there is none.
Differences = Mapping[str, float | str]

#: Quantities that count tokens or rows which one way alone counts as it does: none may differ.
TOKENS, ROWS = "visual_tokens", "rows_of_groups"


def largest_difference(
    measured: "pd.Series[Any]", recomputed: "pd.Series[Any]", *, relative: bool
) -> float:
    """Between measured numbers and recomputed ones of the same index.

    Args:
        measured: in any order; what was not recomputed has no say.
        recomputed: NaN has no say.
        relative: as a share of the recomputed one, where this is not zero.

    Returns:
        Infinite where a measured number is missing or not finite.
    """
    recomputed = recomputed.dropna()
    there = measured.reindex(recomputed.index).to_numpy(dtype=np.float64)
    expected = recomputed.to_numpy(dtype=np.float64)
    scale = np.where(relative & (expected != 0), np.abs(expected), 1.0)
    with np.errstate(invalid="ignore"):
        apart = np.abs(there - expected) / scale
    return float(np.where(np.isfinite(there), apart, np.inf).max(initial=0.0))


def in_doubt(found: Differences, dtype: torch.dtype) -> list[str]:
    """The quantities that differ by more than rounding explains.

    Args:
        found: of a recomputation.
        dtype: of the model.
    """
    # Two forwards of a half-precision model may take kernels that round differently.
    tolerance = 1e-2 if torch.finfo(dtype).bits < 32 else 1e-4
    return [
        name
        for name, value in found.items()
        if not isinstance(value, str) and not value <= tolerance * (name not in (TOKENS, ROWS))
    ]
