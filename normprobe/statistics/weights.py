"""Statistics of weights: rows of embedding tables (Tables 3 and 6), gains of norms (Table 5)."""

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from normprobe.errors import NormprobeError
from normprobe.schema import ALL_ROWS, NONZERO_ROWS, TOKENIZER_ROWS
from normprobe.statistics.token_metrics import token_norms
from normprobe.tidy import QUANTILES, tidy

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
        The rows of embeddings.csv, of each scope (``all_rows``; ``nonzero_rows``, the paper's
        Eq. 11; ``tokenizer_rows``): mean, population deviation and exact quantiles (inverted
        distribution function) of the norm, its extremes, and as ``tokens`` how many rows are
        averaged.

    Raises:
        NormprobeError: when the weight is not a two-dimensional float tensor.
    """
    return scope_table(row_norms(weight), weight.shape[1], tokenizer_ids, table)


def scope_table(
    norms: NDArray[np.float64], hidden_size: int, tokenizer_ids: Iterable[int] | None, table: str
) -> pd.DataFrame:
    """The rows of ``embedding_statistics`` from norms that are there already."""
    scopes = scopes_of(norms, tokenizer_ids)
    finite = [selected[np.isfinite(selected)] for selected in scopes.values()]
    cells = pd.DataFrame({"table": table, "rows": [*scopes], "tokens": [*map(len, finite)]})
    lost = np.array([*map(len, scopes.values())]) - cells["tokens"]
    found = pd.DataFrame([*map(_statistics, finite)], columns=["mean", "std", *_EXACT], dtype=float)
    return tidy(
        cells,
        {
            "hidden_size": {"mean": np.full(len(cells), hidden_size)},
            "nonfinite": {"mean": lost},
            "norm": {name: found[name] for name in ("mean", "std", *QUANTILES)},
            "norm_min": {"mean": found["min"]},
            "norm_max": {"mean": found["max"]},
        },
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


_EXACT = {"min": 0.0, **QUANTILES, "max": 1.0}


def _statistics(norms: NDArray[np.float64]) -> dict[str, float]:
    if not norms.size:
        return {}
    exact = np.quantile(norms, [*_EXACT.values()], method="inverted_cdf")
    return {"mean": norms.mean(), "std": norms.std(), **dict(zip(_EXACT, exact, strict=True))}


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
