"""How large gain and bias of a norm are (Table 5)."""

import math

import pandas as pd
from torch import Tensor


def norm_statistics(gain: Tensor, bias: Tensor) -> pd.DataFrame:
    """Size of the weights of a norm (Table 5), in float64.

    Args:
        gain: ``[hidden]``.
        bias: ``[hidden]``.

    Returns:
        One row for ``gain`` and ``bias``: hidden_size, l2_norm, mean_abs, std_abs (population
        deviation of the absolute values) and sem_abs = std_abs / sqrt(hidden_size). The paper does
        not say which of the two its Table 5 gives behind the mean. Its own numbers do: sqrt(L2^2 /
        3072 - mean^2) of the aligned gain is 0.0097, far from the 0.0001 there, which is near
        0.0097 / sqrt(3072).
    """
    rows = []
    for name, weight in (("gain", gain), ("bias", bias)):
        values = weight.detach().double().abs().cpu()
        deviation = float(values.std(correction=0))
        rows.append(
            {
                "parameter": name,
                "hidden_size": values.numel(),
                "l2_norm": float(values.norm()),
                "mean_abs": float(values.mean()),
                "std_abs": deviation,
                "sem_abs": deviation / math.sqrt(values.numel()),
            }
        )
    return pd.DataFrame(rows)
