"""Statistics of weights: rows of embedding tables (Tables 3 and 6), gains of norms (Table 5)."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from normprobe.errors import NormprobeError
from normprobe.quantities import QUANTILES
from normprobe.schema import ALL_ROWS, NONZERO_ROWS, TOKENIZER_ROWS
from normprobe.statistics.token_metrics import token_norms

_ROWS_AT_ONCE = 16_384  # a float32 copy of a whole 150k-row table would take gigabytes


def embedding_statistics(
    weight: Tensor, *, tokenizer_ids: Iterable[int] | None = None, table: str = "text"
) -> pd.DataFrame:
    """Statistics of the L2 norms of a table's rows.

    Args:
        weight: ``[rows, hidden]``, any float dtype.
        tokenizer_ids: ids the tokenizer can emit; adds the scope ``tokenizer_rows``.
        table: ``text`` or ``visual``, goes into the first column.

    Returns:
        The rows of embeddings.csv: one a scope (``all_rows``; ``nonzero_rows``, the paper's
        Eq. 11; ``tokenizer_rows``) with count, mean, population deviation, extremes and exact
        quantiles (inverted distribution function).

    Raises:
        NormprobeError: when the weight is not a two-dimensional float tensor.
    """
    return scope_table(row_norms(weight), weight.shape[1], tokenizer_ids, table)


def scope_table(
    norms: NDArray[np.float64], hidden_size: int, tokenizer_ids: Iterable[int] | None, table: str
) -> pd.DataFrame:
    """The rows of ``embedding_statistics`` from norms that are there already."""
    return pd.DataFrame(
        {"table": table, "rows": scope, "hidden_size": hidden_size, **_statistics(selected)}
        for scope, selected in scopes_of(norms, tokenizer_ids).items()
    )


def row_norms(weight: Tensor) -> NDArray[np.float64]:
    """L2 norm of each row, of ``token_norms``, computed where the weight lies.

    Args:
        weight: ``[rows, hidden]``.

    Returns:
        ``[rows]``.

    Raises:
        NormprobeError: when the weight is not a two-dimensional float tensor.
    """
    if weight.dim() != 2 or not weight.is_floating_point():
        raise NormprobeError(
            f"an embedding table is a two-dimensional float tensor; received shape "
            f"{list(weight.shape)}, {weight.dtype}",
            "pass model.get_input_embeddings().weight",
        )
    chunks = [token_norms(chunk) for chunk in torch.split(weight.detach(), _ROWS_AT_ONCE)]
    return torch.cat(chunks).cpu().numpy().astype(np.float64)


def scopes_of(
    norms: NDArray[np.float64], tokenizer_ids: Iterable[int] | None
) -> dict[str, NDArray[np.float64]]:
    """The norms of each row scope. Padded vocabulary rows are zero and skew a plain mean."""
    scopes = {ALL_ROWS: norms, NONZERO_ROWS: norms[norms > 0]}
    if tokenizer_ids is not None:
        ids = np.unique(np.fromiter(tokenizer_ids, dtype=np.int64))
        scopes[TOKENIZER_ROWS] = norms[ids[ids < len(norms)]]
    return scopes


def _statistics(norms: NDArray[np.float64]) -> dict[str, Any]:
    finite = norms[np.isfinite(norms)]
    names = [f"norm_{name}" for name in QUANTILES]
    if not finite.size:
        return {"count": 0, "nonfinite": norms.size, "norm_mean": np.nan}
    quantiles = np.quantile(finite, list(QUANTILES.values()), method="inverted_cdf")
    return {
        "count": finite.size,
        "nonfinite": norms.size - finite.size,
        "norm_mean": finite.mean(),
        "norm_std": finite.std(),
        "norm_min": finite.min(),
        **dict(zip(names, quantiles, strict=True)),
        "norm_max": finite.max(),
    }


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
