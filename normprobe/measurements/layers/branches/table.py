"""Sample rows to branches.csv: what attention and the MLP of each layer write, each by itself."""

import numpy as np
import pandas as pd

from normprobe.schema import (
    BRANCH_METRICS,
    BRANCHES,
    IMAGE,
    NON_VISUAL,
    PAIR,
    TEXT,
    TOKEN_GROUPS,
    VISUAL,
)
from normprobe.statistics.resampling import Resampled, Together, with_intervals
from normprobe.statistics.sample_statistics import merge

_BY = ["layer", "branch", "group"]
#: Of which metrics the table holds a group's mean over that of text tokens.
RATIO_METRICS = ("update_norm", "angle")


def branches_table(rows: pd.DataFrame) -> pd.DataFrame:
    """What each branch of each layer adds."""
    held = _by_branch(rows[~rows["group"].isin([PAIR, IMAGE])])
    if held.empty:
        return pd.DataFrame()
    table = merge(held, _BY, BRANCH_METRICS).drop(columns="nonfinite")
    order = {name: place for place, name in enumerate((*BRANCHES, *TOKEN_GROUPS, NON_VISUAL))}
    table = table.sort_values(_BY, key=lambda c: c if c.name == "layer" else c.map(order))
    table = table.reset_index(drop=True)
    resampled = Resampled(table, held, _BY)
    draws = {}
    for metric in BRANCH_METRICS:
        draws[f"{metric}_mean"] = resampled.means(f"{metric}_mean", by_tokens=True)
        draws[f"{metric}_sample_mean"] = resampled.means(f"{metric}_mean", by_tokens=False)
        if metric in RATIO_METRICS:
            draws[f"{metric}_geometric_mean"] = resampled.geometric_means(metric)
    cells = pd.MultiIndex.from_frame(table[_BY])
    beside = cells.get_indexer(pd.MultiIndex.from_frame(table[_BY].assign(group=TEXT)))
    for metric in RATIO_METRICS:
        for kind in ("", "geometric_"):
            column, means = f"{metric}_{kind}ratio_to_text", draws[f"{metric}_{kind}mean"]
            with np.errstate(divide="ignore", invalid="ignore"):  # a branch that adds nothing
                draws[column] = np.where(beside >= 0, means / means[:, beside], np.nan)
            table[column] = draws[column][0]
    together = [
        Together(
            [f"{metric}_geometric_ratio_to_text"],
            (table["group"] == VISUAL) & (table["branch"] == branch),
        )
        for metric in RATIO_METRICS
        for branch in BRANCHES
    ]
    return with_intervals(table, draws, resampled.units, resampled.held, together)


def _by_branch(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of each branch below each other, its columns named by the metric alone."""
    common = ["sample_id", "image_hash", "layer", "group", "tokens", "nonfinite"]
    parts = []
    for branch in BRANCHES:
        names = {
            f"{branch}_{metric}_{part}": f"{metric}_{part}"
            for metric in BRANCH_METRICS
            for part in ("mean", "m2", "tokens", "log_mean", "log_tokens")
            if f"{branch}_{metric}_{part}" in rows
        }
        if names:
            held = rows.dropna(subset=[f"{branch}_{BRANCH_METRICS[0]}_mean"])
            parts.append(held[[*common, *names]].rename(columns=names).assign(branch=branch))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
