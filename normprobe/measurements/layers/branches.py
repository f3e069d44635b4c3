"""Branches: what ``layers --also branches`` adds to a run, and what it says.

A branch adds a to a state x. ``update_norm`` is ||a||, ``relative_update`` ||a|| / ||x||, and
``angle`` that between x and x + a: by how much this branch alone turns the state (Eq. 8). Blocks in
parallel turn the same x. ``watchers.BranchWatcher`` sees them.
"""

import pandas as pd

from normprobe.report.charts import Curve, Panel
from normprobe.report.figures.style import GROUP_LOOKS, GroupLook
from normprobe.report.ratio_words import FAST, OPEN, Ratio, Words, ratios_by_layer
from normprobe.report.sentences import layers_in_words
from normprobe.report.terminal import NumberColumn
from normprobe.schema import (
    BESIDE_GROUPS,
    BRANCH_METRICS,
    BRANCHES,
    TABLE_GROUPS,
    TEXT,
    VISUAL,
)
from normprobe.statistics.resampling import Resampled, Together, with_intervals
from normprobe.statistics.sample_statistics import merge

_BY = ["layer", "branch", "group"]

#: Of which metrics the table holds a group's mean over that of text tokens.
RATIO_METRICS = ("update_norm", "angle")


def branches_table(rows: pd.DataFrame) -> pd.DataFrame:
    """What each branch of each layer adds."""
    held = _by_branch(rows[~rows["group"].isin(BESIDE_GROUPS)])
    if held.empty:
        return pd.DataFrame()
    table = merge(held, _BY, BRANCH_METRICS).drop(columns="nonfinite")
    order = {name: place for place, name in enumerate((*BRANCHES, *TABLE_GROUPS))}
    table = table.sort_values(_BY, key=lambda c: c if c.name == "layer" else c.map(order))
    table = table.reset_index(drop=True)
    resampled = Resampled(table, held, _BY)
    draws = resampled.of_tokens(BRANCH_METRICS)
    for metric in RATIO_METRICS:
        for kind in ("", "geometric_"):
            column = f"{metric}_{kind}ratio_to_text"
            draws[column] = resampled.to_text(draws[f"{metric}_{kind}mean"])
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


BRANCH_WORDS = dict(zip(BRANCHES, ("attention", "cross-attention", "MLP"), strict=True))
_LARGE = Words("larger", "smaller", "about as large", f"of a size {OPEN}")


def branches_verdict(branches: pd.DataFrame) -> str:
    """What each branch adds to visual tokens, and how fast it turns them, against text tokens."""
    sentences: list[str] = []
    for branch, name in BRANCH_WORDS.items():
        rows = branches[(branches["branch"] == branch) & (branches["group"] == VISUAL)]
        size = layers_in_words(_ratios(rows, "update_norm"), _LARGE)
        turn = layers_in_words(_ratios(rows, "angle"), FAST)
        if size and turn:
            sentences.append(
                f"{'What' if sentences else 'Against text tokens, what'} the {name} adds to "
                f"visual tokens is {size}, and it turns them {turn}."
            )
    return " ".join(sentences)


def _ratios(rows: pd.DataFrame, metric: str) -> dict[int, Ratio]:
    return ratios_by_layer(rows, f"{metric}_geometric_ratio_to_text")


_LINES = dict(zip(BRANCHES, ("-", ":", "--"), strict=True))
_METRICS = {
    "update_norm": "L2 norm of the update, ‖a‖",
    "relative_update": "relative update, ‖a‖ / ‖x‖",
    "angle": "angular velocity (radians)",
}
#: Colours are token groups, line styles branches.
BRANCH_PANELS = tuple(
    Panel(
        title,
        tuple(
            Curve(
                f"{BRANCH_WORDS[branch]}, {group}",
                f"{metric}_mean",
                GROUP_LOOKS[group]._replace(linestyle=_LINES[branch]),
                {"branch": branch, "group": group},
            )
            for branch in reversed(BRANCHES)
            for group in (TEXT, VISUAL)
        ),
    )
    for metric, title in _METRICS.items()
)
BRANCH_KEYS = (
    *(
        Curve(group, "", GROUP_LOOKS[group]._replace(linestyle="-"), {"group": group})
        for group in (VISUAL, TEXT)
    ),
    *(
        Curve(BRANCH_WORDS[branch], "", GroupLook("0.3", "", line), {"branch": branch})
        for branch, line in _LINES.items()
    ),
)


def columns(branches: pd.DataFrame) -> list[NumberColumn]:
    """What a terminal shows of branches.csv; of more than two branches the angles alone fit."""
    present = [name for name in BRANCH_WORDS if (branches["branch"] == name).any()]
    groups = [group for group in (VISUAL, TEXT) if (branches["group"] == group).any()]
    metrics = {"angle": "angle", "relative_update": "rel.update"}
    return [
        NumberColumn(
            (BRANCH_WORDS[branch], header, group),
            f"{metric}_mean",
            {"branch": branch, "group": group},
        )
        for branch in present
        for metric, header in list(metrics.items())[: 2 if len(present) < 3 else 1]
        for group in groups
    ]


NOTES = (
    "Each branch by itself: radians by which it turns the state that it is added to,",
    "and its relative update |a| / |x|. branches.csv has all.",
)
