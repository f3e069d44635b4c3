"""The loudest token of a group: what it holds of all norms, and which one it is."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray


def loudest_token(
    norms: NDArray[np.floating[Any]], positions: NDArray[Any], ids: NDArray[Any] | None
) -> dict[str, list[float]]:
    """Columns of sample rows about the loudest token of a group, one entry a layer.

    Args:
        norms: ``[layers, tokens]``; those that are not finite have no say.
        positions: ``[tokens]`` in the prompt.
        ids: ``[tokens]``; None: tokens have none.

    Returns:
        ``loudest_share`` of the sum of norms, ``loudest_position`` and ``loudest_id``.
    """
    held = np.where(np.isfinite(norms), norms, 0.0).astype(np.float64)
    places = held.argmax(axis=1)
    with np.errstate(invalid="ignore"):  # nothing but zeros
        share = held.max(axis=1) / held.sum(axis=1)
    named = np.full(held.shape[1], np.nan) if ids is None else ids
    return {
        "loudest_share": share.tolist(),
        "loudest_position": positions[places].tolist(),
        "loudest_id": named[places].tolist(),
    }


def loudest_columns(
    rows: pd.DataFrame, by: list[str], token_text: Callable[[int], str] | None
) -> pd.DataFrame:
    """Columns of a table about the loudest tokens of its samples.

    Args:
        rows: sample rows with the columns of ``loudest_token``.
        by: the columns that name a row of the table.
        token_text: a token id as text; None: tokens have no text.

    Returns:
        ``by``, ``loudest_share`` (mean over samples); ``loudest_token`` and ``loudest_position`` as
        they are in most samples, ``loudest_samples`` in how many.
    """
    which = ["loudest_id", "loudest_position"]
    shares = rows.groupby(by, sort=False)["loudest_share"].mean().to_frame()
    counts = rows[rows["loudest_position"].notna()].groupby([*by, *which], dropna=False).size()
    most = counts.rename("loudest_samples").reset_index()
    most = most.sort_values("loudest_samples", ascending=False, kind="stable")
    table = shares.join(most.drop_duplicates(by).set_index(by)).reset_index()
    ids = table.pop("loudest_id")
    text = [
        None if pd.isna(token) or token_text is None else token_text(int(token)) for token in ids
    ]
    table.insert(len(by) + 1, "loudest_token", pd.Series(text, dtype=object))
    return table.astype({"loudest_position": "Int64", "loudest_samples": "Int64"})
