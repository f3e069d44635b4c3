"""Where few tokens make the mean norm of a group: said of every such mean."""

from collections.abc import Callable
from typing import Any

import pandas as pd

from normprobe.report.ratio_words import times
from normprobe.report.readable_token import readable_token
from normprobe.schema import TEXT, VISUAL

#: Mean and median further apart than this: few tokens make the mean.
CARRIED = 1.5


def carried_sentences(rows: pd.DataFrame) -> list[str]:
    """``carried_sentence`` of visual and of text tokens, as far as there is one."""
    told = [carried_sentence(rows[rows["group"] == group], group) for group in (VISUAL, TEXT)]
    return [sentence for sentence in told if sentence]


def carried_sentence(rows: pd.DataFrame, group: str) -> str:
    """Where the mean norm is far from the median: how far at most, and which token makes it so."""
    apart = (rows["norm_mean"] / rows["norm_q50"]).where(rows["norm_q50"] > 0)
    away = apart.where(apart > 1, 1 / apart)
    if not (away > CARRIED).any():
        return ""
    farthest = int(away.fillna(0.0).to_numpy().argmax())
    row = rows.iloc[farthest]
    where = f"After layer {int(row['layer'])}" if row.get("layer") else "At the decoder input"
    size = float(apart.iloc[farthest])
    if size < 1:
        return f"{where} the median norm of {group} tokens is {times(1 / size)} their mean."
    return (
        f"{where} the mean norm of {group} tokens is {times(size)} their median: the loudest token "
        f"of a sample holds {100 * row['loudest_share']:.0f} % of it{_which(row)}."
    )


def quoted(token_text: Callable[[int], str] | None) -> Callable[[int], str] | None:
    """Token ids as text that tables and sentences can show; None where they have none."""
    if token_text is None:
        return None

    def text(token: int) -> str:
        try:
            return readable_token(token_text(token))
        except Exception:  # placeholders of own code may be no ids of its tokenizer, such as -1
            return str(token)

    return text


def _which(row: "pd.Series[Any]") -> str:
    """Which token that is, where it is the same in several samples, or there is one."""
    if not (row["loudest_samples"] > 1 or row["samples"] == 1):
        return ""
    token = row["loudest_token"]
    named = f"{token} at " if isinstance(token, str) else "at "
    samples = f"in {int(row['loudest_samples'])} of {int(row['samples'])} samples "
    return f", {samples}{named}position {int(row['loudest_position'])}"
