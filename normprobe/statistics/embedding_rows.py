"""Statistics of the rows of an embedding table (Tables 3 and 6, Eq. 11)."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from normprobe.errors import NormprobeError
from normprobe.schema import ALL_ROWS, NONZERO_ROWS, QUANTILES, TOKENIZER_ROWS
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
