"""Everything that a run of ``nearest`` contains, with intervals and bands over images."""

import pandas as pd

from normprobe.extensions.pictures.nearest.measure import WORDS
from normprobe.extensions.pictures.sample_tables import (
    left_out_table,
    means_table,
    measured_rows,
)
from normprobe.statistics.resampling import Together
from normprobe.tidy import declared

_QUANTITIES = ("nearest_cosine", "permuted_cosine", "text_cosine", "above_chance", "chance")
_RATIOS = {"to_chance": ("above_chance", "chance")}


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """How near words are by layer, which words these are, and what was left out."""
    measured = measured_rows(rows, "measured", "pass other --data, with pictures")
    of_layers, of_words = measured[measured["rank"] == 0], measured[measured["rank"] > 0]
    cells = of_layers[["layer"]].drop_duplicates().sort_values("layer").reset_index(drop=True)
    nearest = means_table(
        declared(__package__)["nearest"],
        cells,
        of_layers,
        _QUANTITIES,
        _RATIOS,
        [Together(["to_chance"])],
    )
    return {
        "nearest": nearest,
        "nearest_words": _words(of_words, of_layers["sample_id"].nunique()),
        **left_out_table(rows),
    }


def _words(rows: pd.DataFrame, samples: int) -> pd.DataFrame:
    """The words of each layer with the largest shares; beyond a sample's first ten none counts."""
    words = rows.groupby(["layer", "token_id", "word"], as_index=False).agg(
        samples=("sample_id", "size"), share=("share", "sum"), cosine=("nearest_cosine", "mean")
    )
    words["share"] /= samples
    words = words.sort_values(["layer", "share"], ascending=[True, False], kind="stable")
    first = words.groupby("layer", sort=False).head(WORDS)
    return first.reset_index(drop=True)[["layer", "word", "token_id", "samples", "share", "cosine"]]
