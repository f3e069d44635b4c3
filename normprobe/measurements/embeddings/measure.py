"""Norms of an embedding table, and the tokens that stand out (Tables 3, 6-8)."""

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.measurements.embeddings.shift import measure_shift
from normprobe.measurements.embeddings.text_table import TextTable
from normprobe.model.find.parts import weight_of
from normprobe.model.find.structure import image_token_rows
from normprobe.model.measured_model import MeasuredModel
from normprobe.schema import TEXT, VISUAL
from normprobe.statistics.weights import row_norms, scope_table


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
