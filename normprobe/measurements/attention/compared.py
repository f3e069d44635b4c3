"""Runs of ``attention`` side by side: before and after alignment, or two models on one picture."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from normprobe.report.ratio_words import Ratio, with_ends
from normprobe.runs.run_folder import RunStore

#: Header and column of each number of the ranking.
COLUMNS = {
    "share / even": "share_to_even",
    "share": "share",
    "entropy": "entropy",
    "vertical center": "vertical_center",
}
NOTES = (
    "Attention of all text to visual tokens, means over layers. share / even: against",
    "an even spread; its |log| ranks. entropy: 1: even. vertical center: 0 is the top",
    "of the image, 1 its bottom. One prompt a run, no intervals.",
)
#: No interval: there are no sample rows.
ROW_COLUMNS = ()


def figures(compare: pd.DataFrame) -> tuple[str, ...]:
    """The modules that draw ``compare.csv``, and the maps where the pictures are the same."""
    del compare
    return ("compare_attention", "heatmaps")


def measures(attention: pd.DataFrame, rows: pd.DataFrame | None = None) -> dict[str, float]:
    """How much, how widely and where the text of one run attends to the image."""
    del rows
    told = attention[attention["query"] == attention["query"].iloc[0]]
    means = told[told["heads"] > 0].reindex(columns=attention.columns).mean(numeric_only=True)
    share, even = means.get("share_mean", np.nan), means.get("even_share_mean", np.nan)
    return with_ends({"share_to_even": Ratio(float(share / even))}) | {
        "share": float(share),
        "entropy": float(means.get("entropy_mean", np.nan)),
        "vertical_center": float(means.get("vertical_center", np.nan)),
    }


def shared(runs: Sequence[RunStore], labels: Sequence[str]) -> dict[str, pd.DataFrame]:
    """The heat maps of all runs below each other, where they are of the same pictures."""
    pictures = [list((run.record.get("image_hashes") or {}).values()) for run in runs]
    if any(of_run != pictures[0] for of_run in pictures):
        return {}
    maps = [run.rows_of("heatmaps") for run in runs]
    known = [(table, label) for table, label in zip(maps, labels, strict=True) if table is not None]
    if len(known) < len(runs):
        return {}
    joined = pd.concat([table.assign(run=label) for table, label in known], ignore_index=True)
    return {"heatmaps": joined}
