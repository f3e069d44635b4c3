"""Runs of ``embeddings`` side by side: what ranks them, and how they are shown."""

from math import nan

import pandas as pd

from normprobe.schema import BASE, NONZERO_ROWS, TEXT, VISUAL

#: Header and column of each number of the ranking.
COLUMNS = {
    "loudest": "loudest_ratio",
    "visual": "visual_ratio",
    "mean": "text_norm",
    "std": "text_std",
    "base mean": "base_norm",
}
NOTES = (
    "Non-zero rows. loudest: largest / mean norm of the text table; visual: mean",
    "norm of the visual table / that of the text table. Ranked by loudest.",
)

#: What the intervals need of the sample rows: there are neither.
ROW_COLUMNS = ()


def figures(compare: pd.DataFrame) -> tuple[str, ...]:
    """The modules that draw ``compare.csv``."""
    del compare
    return ("compare_embeddings",)


def measures(embeddings: pd.DataFrame, rows: pd.DataFrame | None = None) -> dict[str, float]:
    """How far the rows of one run's tables spread, non-zero rows alone."""
    del rows
    nonzero = embeddings[embeddings["rows"] == NONZERO_ROWS].set_index("table")
    text = float(nonzero["norm_mean"].get(TEXT, nan))
    return {
        "loudest_ratio": float(nonzero["norm_max"].get(TEXT, nan)) / text,
        "visual_ratio": float(nonzero["norm_mean"].get(VISUAL, nan)) / text,
        "text_norm": text,
        "text_std": float(nonzero["norm_std"].get(TEXT, nan)),
        "base_norm": float(nonzero["norm_mean"].get(BASE, nan)),
    }
