"""``embeddings``: norms of an embedding table, and the tokens that stand out (Tables 3, 6-8)."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from accelerate.utils import align_module_device
from numpy.typing import NDArray
from torch import Tensor

from normprobe.errors import NormprobeError
from normprobe.model.parts import Part, Parts
from normprobe.probes.token_metrics import token_norms
from normprobe.schema import ALL_ROWS, NONZERO_ROWS, QUANTILES, TOKENIZER_ROWS

_TABLES = ("weight", "embedding", "new_embedding")
_ROWS_AT_ONCE = 16_384  # a float32 copy of a whole 150k-row table would take gigabytes


def measure_embeddings(
    parts: Parts,
    tokenizer_ids: Sequence[int],
    special: Collection[int],
    top: int,
    image_rows: Sequence[int] = (),
) -> dict[str, pd.DataFrame]:
    """The tables of the command.

    Args:
        parts: of a model whose embedding weights are in memory.
        tokenizer_ids: ids the tokenizer can emit.
        special: those among them that are special.
        top: how many of the loudest and quietest tokens.
        image_rows: rows of the text table that an image tokenizer writes, of
            ``image_token_rows``. They are described as a ``visual`` table of their own, and stay
            in the statistics of the text table, which the paper's Eq. 11 takes whole.

    Returns:
        ``embeddings``, ``tokens`` (text table alone, without the tokens' text) and ``histogram``,
        named as their CSV files.

    Raises:
        NormprobeError: when the model has no text embedding.
    """
    if parts.text_embedding is None:
        raise NormprobeError(
            "the model has no text embedding table", "use `normprobe interface` for its vision side"
        )
    weight = weight_of(parts.text_embedding)
    norms = row_norms(weight)
    statistics = [_scope_table(norms, weight.shape[1], tokenizer_ids, "text")]
    histograms = [norm_histogram(norms, special).assign(table="text")]
    visual = weight if parts.visual_embedding is None else weight_of(parts.visual_embedding)
    if parts.visual_embedding is not None or image_rows:
        visual_norms = norms[list(image_rows)] if visual is weight else row_norms(visual)
        statistics.append(_scope_table(visual_norms, visual.shape[1], None, "visual"))
        histograms.append(norm_histogram(visual_norms, ()).assign(table="visual"))
    ranking = token_ranking(norms, tokenizer_ids, special, top)
    return {
        "embeddings": pd.concat(statistics, ignore_index=True),
        "tokens": ranking.assign(table="text"),
        "histogram": pd.concat(histograms, ignore_index=True),
    }


def weight_of(part: Part) -> Tensor:
    """The table itself, ``[rows, hidden]``. Molmo keeps added tokens in a second one.

    An offloaded table is fetched from where accelerate put it.
    """
    with align_module_device(part.module):
        tables = [getattr(part.module, name, None) for name in _TABLES]
        present = [table.detach() for table in tables if isinstance(table, Tensor)]
    return present[0] if len(present) == 1 else torch.cat(present)


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
    return _scope_table(row_norms(weight), weight.shape[1], tokenizer_ids, table)


def _scope_table(
    norms: NDArray[np.float64], hidden_size: int, tokenizer_ids: Iterable[int] | None, table: str
) -> pd.DataFrame:
    """The rows of ``embedding_statistics`` from norms that are there already."""
    return pd.DataFrame(
        {"table": table, "rows": scope, "hidden_size": hidden_size, **_statistics(selected)}
        for scope, selected in scopes_of(norms, tokenizer_ids).items()
    )


def row_norms(weight: Tensor) -> NDArray[np.float64]:
    """L2 norm of each row, computed in float32 where the weight lies.

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


def token_ranking(
    norms: NDArray[np.float64], ids: Sequence[int], special: Collection[int], top: int
) -> pd.DataFrame:
    """The loudest and quietest tokens.

    Args:
        norms: ``[rows]`` of ``row_norms``.
        ids: the rows to rank, those the tokenizer can emit.
        special: ids of special tokens.
        top: how many of either end.

    Returns:
        One row a token: end (``top``, ``bottom``), rank, token_id, special, norm. Equal norms
        rank by id.
    """
    ranked = np.array(sorted(id_ for id_ in ids if id_ < len(norms)), dtype=np.int64)
    ranked = ranked[np.isfinite(norms[ranked])]
    rising = ranked[np.argsort(norms[ranked], kind="stable")]
    falling = ranked[np.argsort(-norms[ranked], kind="stable")]
    return pd.DataFrame(
        {
            "end": end,
            "rank": rank,
            "token_id": int(id_),
            "special": int(id_) in special,
            "norm": norms[id_],
        }
        for end, order in (("top", falling), ("bottom", rising))
        for rank, id_ in enumerate(order[:top], start=1)
    )


def norm_histogram(
    norms: NDArray[np.float64], special: Collection[int], bins: int = 60
) -> pd.DataFrame:
    """Counts of row norms in equal bins, special tokens apart.

    Args:
        norms: ``[rows]`` of ``row_norms``.
        special: row numbers of special tokens.
        bins: how many from 0 to the largest norm.

    Returns:
        The rows of histogram.csv: special, left, right, count.
    """
    is_special = np.isin(np.arange(len(norms)), list(special))
    finite = np.isfinite(norms)
    edges = np.linspace(0.0, norms[finite].max(initial=0.0) or 1.0, bins + 1)
    parts = []
    for flag in (False, True):
        counts, _ = np.histogram(norms[finite & (is_special == flag)], edges)
        parts.append(
            pd.DataFrame({"special": flag, "left": edges[:-1], "right": edges[1:], "count": counts})
        )
    return pd.concat(parts, ignore_index=True)
