"""How far a text embedding table moved from that of the base model (paper: Appendix C).

Rows are aligned by the token's spelling in the vocabulary, never by index: a vision-language model
adds tokens, drops some, and may number the rest anew.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from normprobe.errors import NormprobeError
from normprobe.measurements.embeddings.text_table import TextTable
from normprobe.schema import BASE
from normprobe.statistics.token_metrics import token_norms
from normprobe.statistics.weights import scope_table

_ROWS_AT_ONCE = 16_384  # float32 copies of two whole tables would take gigabytes


def measure_shift(table: TextTable, base: TextTable, top: int) -> dict[str, pd.DataFrame]:
    """Both tables, and each token of either, side by side."""
    ids = aligned_ids(table.vocabulary, base.vocabulary)
    norms, base_norms = table.norms, base.norms
    here, there = ids["token_id"].notna(), ids["base_id"].notna()
    both = here & there
    own, other = ids.loc[here, "token_id"].astype(int), ids.loc[there, "base_id"].astype(int)
    shift = ids.assign(
        special=ids["token_id"].isin(table.special) | ids["base_id"].isin(base.special),
        visual_token=ids["token_id"].isin(table.visual) | ids["base_id"].isin(base.visual),
        norm=pd.Series(norms[own], own.index),
        base_norm=pd.Series(base_norms[other], other.index),
    )
    shift["rank"] = _ranks(shift, "norm", "token_id")
    shift["base_rank"] = _ranks(shift, "base_norm", "base_id")
    shift["norm_change"] = shift["norm"] - shift["base_norm"]
    moved = np.full((int(both.sum()), 2), np.nan)
    if table.weight.shape[1] == base.weight.shape[1]:
        moved = _row_shift(table.weight, base.weight, own[both].tolist(), other[both].tolist())
    for name, values in zip(("distance", "cosine"), moved.T, strict=True):
        shift[name] = pd.Series(values, shift.index[both])
    loud_there = shift["base_rank"].le(top).fillna(False)
    shift["emerging"] = shift["rank"].le(top).fillna(False) & ~loud_there
    shift.insert(0, "token", _texts(shift, table, base))
    ids_there = list(base.vocabulary.values())
    statistics = scope_table(base_norms, base.weight.shape[1], ids_there, BASE)
    return {"base": statistics, "shift": shift}


def _texts(shift: pd.DataFrame, table: TextTable, base: TextTable) -> list[str]:
    """How each token reads, in the model's own spelling where it has one."""
    return [
        table.text(int(own)) if pd.notna(own) else base.text(int(other))
        for own, other in zip(shift["token_id"], shift["base_id"], strict=True)
    ]


def aligned_ids(vocabulary: Mapping[str, int], base: Mapping[str, int]) -> pd.DataFrame:
    """Which id of one vocabulary is which of the other."""
    if not vocabulary.keys() & base.keys():
        raise NormprobeError(
            f"the vocabularies share no token: {len(vocabulary)} tokens such as "
            f"{_example(vocabulary)}, {len(base)} such as {_example(base)} in the base",
            "pass the language model that MODEL was trained from as --base",
        )
    columns = {
        "token_id": pd.Series(vocabulary, dtype="Int64"),
        "base_id": pd.Series(base, dtype="Int64"),
    }
    return (
        pd.concat(columns, axis=1)
        .sort_values(["token_id", "base_id"], na_position="last")
        .reset_index(drop=True)
    )


def _ranks(shift: pd.DataFrame, norm: str, id_: str) -> pd.Series:
    """1 for the largest norm; nothing for a token that is not there or not finite."""
    finite = shift[np.isfinite(shift[norm].astype(float))]
    order = finite.sort_values([norm, id_], ascending=[False, True]).index
    return pd.Series(range(1, len(order) + 1), index=order, dtype="Int64")


def _row_shift(
    weight: Tensor, base: Tensor, ids: Sequence[int], base_ids: Sequence[int]
) -> NDArray[np.float64]:
    """Distance and cosine of row pairs, ``[pairs, 2]``, in float32 a few rows at a time."""
    chunks = []
    for start in range(0, len(ids), _ROWS_AT_ONCE):
        chosen = slice(start, start + _ROWS_AT_ONCE)
        rows = weight[torch.tensor(ids[chosen], device=weight.device)].float()
        others = base[torch.tensor(base_ids[chosen], device=base.device)].to(rows)
        cosine = torch.linalg.vecdot(rows, others) / (token_norms(rows) * token_norms(others))
        chunks.append(torch.stack([token_norms(rows - others), cosine], dim=-1).cpu())
    return torch.cat(chunks).numpy().astype(np.float64)


def _example(vocabulary: Mapping[str, int]) -> str:
    return repr(max(vocabulary, key=len, default=""))[:40]
