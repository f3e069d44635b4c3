"""Branches: what ``layers --also branches`` adds to a run, and what it says.

A branch adds a to a state x. ``update_norm`` is ||a||, ``relative_update`` ||a|| / ||x||, and
``angle`` that between x and x + a: by how much this branch alone turns the state (Eq. 8). Blocks in
parallel turn the same x. ``watchers.BranchWatcher`` sees them.
"""

import pandas as pd

from normprobe.report.charts import Curve, Panel
from normprobe.report.figures.style import GROUP_LOOKS, GroupLook
from normprobe.report.ratio_words import Ratio, ratios_by_layer
from normprobe.report.sentences import LayerPhrases, layer_findings
from normprobe.report.terminal import NumberColumn
from normprobe.report.verdict import Finding
from normprobe.schema import (
    BESIDE_GROUPS,
    BRANCH_METRICS,
    BRANCHES,
    TABLE_GROUPS,
    TEXT,
    VISUAL,
)
from normprobe.statistics.resampling import Resampled, Together, add_intervals
from normprobe.statistics.sample_statistics import merge
from normprobe.tidy import along, declared, in_order, select, tidy

_BY = ["layer", "branch", "group"]

#: Of which metrics the table holds a group's mean over that of text tokens.
RATIO_METRICS = ("update_norm", "angle")


def branches_table(rows: pd.DataFrame) -> pd.DataFrame:
    """What each branch of each layer adds."""
    held = _by_branch(rows[~rows["group"].isin(BESIDE_GROUPS)])
    if held.empty:
        return pd.DataFrame()
    cells, numbers = merge(held, _BY, BRANCH_METRICS)
    del numbers["nonfinite"]  # those of the layer
    resampled = Resampled(cells, held, _BY)
    drawn = resampled.of_tokens(BRANCH_METRICS)
    for metric in RATIO_METRICS:
        for kind in ("", "geometric_"):
            ratio = f"{metric}_{kind}ratio_to_text"
            drawn[ratio, "mean"] = resampled.to_text(drawn[metric, f"{kind}mean"])
            numbers[ratio] = {"mean": drawn[ratio, "mean"][0]}
    together = [
        Together(
            [f"{metric}_geometric_ratio_to_text"],
            (cells["group"] == VISUAL) & (cells["branch"] == branch),
        )
        for metric in RATIO_METRICS
        for branch in BRANCHES
    ]
    table = declared(__package__)["branches"]
    add_intervals(numbers, drawn, resampled.units, resampled.held, together, table=table)
    return in_order(tidy(cells, numbers), branch=BRANCHES, group=TABLE_GROUPS)


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


def branches_findings(branches: pd.DataFrame) -> list[Finding]:
    """What each branch adds to visual tokens, and how fast it turns them, against text tokens."""
    findings = []
    for branch, name in BRANCH_WORDS.items():
        rows = branches[(branches["branch"] == branch) & (branches["group"] == VISUAL)]
        size = LayerPhrases(
            f"{branch}.update_norm",
            f"What the {name} adds is larger for visual than for text tokens",
            f"What the {name} adds is smaller for visual than for text tokens",
            f"Size of what the {name} adds to visual and text tokens",
        )
        turn = LayerPhrases(
            f"{branch}.angle",
            f"The {name} turns visual tokens more quickly than text tokens",
            f"The {name} turns visual tokens more slowly than text tokens",
            f"Angle by which the {name} turns visual and text tokens",
        )
        findings += layer_findings(_ratios(rows, "update_norm"), size)
        findings += layer_findings(_ratios(rows, "angle"), turn)
    return findings


def _ratios(rows: pd.DataFrame, metric: str) -> dict[int, Ratio]:
    ratios = select(rows, f"{metric}_geometric_ratio_to_text")
    return ratios_by_layer(along(ratios, rows["layer"]))


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
                metric,
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
            metric,
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
