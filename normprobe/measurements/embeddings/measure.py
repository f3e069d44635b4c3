"""Norms of an embedding table, the tokens that stand out, and how far it moved (Tables 3, 6-8)."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from normprobe.errors import NormprobeError
from normprobe.inputs.processor import token_text
from normprobe.model.find.parts import weight_of
from normprobe.model.find.structure import image_token_rows
from normprobe.model.measured_model import MeasuredModel
from normprobe.schema import BASE, TEXT, VISUAL
from normprobe.statistics.token_metrics import token_norms
from normprobe.statistics.weights import row_norms, scope_table

#: Config fields and special tokens that bound or hold an image.
_VISUAL = re.compile(r"vision|visual|image|img|video|boi|eoi", re.IGNORECASE)
_ID_FIELD = re.compile(r"token_(id|index)$")


@dataclass(frozen=True)
class TextTable:
    """A text embedding table."""

    weight: Tensor  # ``[rows, hidden]``
    # id of each token by its spelling; ids beyond the table are left out
    vocabulary: Mapping[str, int]
    special: frozenset[int]  # ids of special tokens
    visual: frozenset[int]  # ids of the tokens that bound or hold an image
    tokenizer: Any = None  # what reads an id; None: nothing does

    @cached_property
    def norms(self) -> NDArray[np.float64]:
        """L2 norm of each row, ``[rows]``."""
        return row_norms(self.weight)

    def text(self, id_: int) -> str:
        """How a token reads; empty without a tokenizer."""
        return "" if self.tokenizer is None else token_text(self.tokenizer, id_)


def text_table(model: MeasuredModel, tokenizer: Any = None) -> TextTable:
    """The text table of a model. Config fields such as ``vision_start_token_id`` are read."""
    if model.parts.text_embedding is None:
        raise NormprobeError(
            "the model has no text embedding table", "use `normprobe interface` for its vision side"
        )
    weight = weight_of(model.parts.text_embedding).detach()
    vocabulary = {} if tokenizer is None else tokenizer.get_vocab()
    present = {spelling: id_ for spelling, id_ in vocabulary.items() if id_ < len(weight)}
    config = getattr(model.model, "config", None)
    fields = {
        value
        for name, value in (config.to_dict() if config is not None else {}).items()
        if _ID_FIELD.search(name) and _VISUAL.search(name) and isinstance(value, int)
    }
    special = frozenset(model.special_token_ids)
    named = {
        id_ for spelling, id_ in present.items() if id_ in special and _VISUAL.search(spelling)
    }
    return TextTable(weight, present, special, frozenset(fields | named), tokenizer)


def measure_embeddings(
    model: MeasuredModel,
    table: TextTable,
    top: int,
    base: TextTable | None = None,
    named: Collection[str] = (),
) -> dict[str, pd.DataFrame]:
    """Everything that a run of ``embeddings`` contains.

    Rows of the text table that an image tokenizer writes (Chameleon, Emu3) are described as a
    ``visual`` table of their own, and stay in the statistics of the text table, which the paper's
    Eq. 11 takes whole.
    """
    ids = model.vocabulary_ids
    norms, hidden_size = table.norms, table.weight.shape[1]
    statistics = [scope_table(norms, hidden_size, ids, TEXT)]
    histograms = [norm_histogram(norms, table.special).assign(table=TEXT)]
    image_rows = image_token_rows(model.model)
    if model.parts.visual_embedding is not None:
        visual = weight_of(model.parts.visual_embedding)
        visual_norms, hidden_size = row_norms(visual), visual.shape[1]
    else:
        visual_norms = norms[image_rows]
    if model.parts.visual_embedding is not None or image_rows:
        statistics.append(scope_table(visual_norms, hidden_size, None, VISUAL))
        histograms.append(norm_histogram(visual_norms, ()).assign(table=VISUAL))
    known = range(len(norms)) if ids is None else ids
    tokens = token_ranking(norms, known, table.special, top).assign(table=TEXT)
    tokens["token"] = [table.text(id_) for id_ in tokens["token_id"]]
    if named and base is None:
        tokens = pd.concat([tokens, named_tokens(table, known, named)], ignore_index=True)
    measured = {"tokens": tokens, "histogram": pd.concat(histograms, ignore_index=True)}
    if base is not None:
        shift = measure_shift(table, base, top)
        statistics.append(shift["base"])
        measured["shift"] = shift["shift"]
    return {"embeddings": pd.concat(statistics, ignore_index=True), **measured}


def token_ranking(
    norms: NDArray[np.float64], ids: Sequence[int], special: Collection[int], top: int
) -> pd.DataFrame:
    """The loudest and quietest tokens.

    Args:
        norms: ``[rows]`` of ``row_norms``.
        ids: the rows to rank, those the tokenizer can emit.
        special: ids of special tokens.
        top: how many of either end.
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


def named_tokens(table: TextTable, ids: Sequence[int], named: Collection[str]) -> pd.DataFrame:
    """Some tokens by how they read, wherever they rank: their rows of tokens.csv."""
    every = token_ranking(table.norms, ids, table.special, len(ids))
    every = every[every["end"] == "top"].assign(end="named", table=TEXT)
    every["token"] = [table.text(id_) for id_ in every["token_id"]]
    return every[every["token"].isin(named)]


def norm_histogram(
    norms: NDArray[np.float64], special: Collection[int], bins: int = 60
) -> pd.DataFrame:
    """Counts of row norms in equal bins, special tokens apart.

    Args:
        norms: ``[rows]`` of ``row_norms``.
        special: row numbers of special tokens.
        bins: how many from 0 to the largest norm.
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


# --- beside a base model -------------------------------------------------------------------------
# Rows are aligned by the token's spelling in the vocabulary, never by index (paper: Appendix C): a
# vision-language model adds tokens, drops some, and may number the rest anew.

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
