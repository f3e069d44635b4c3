"""What ranks runs of ``embeddings``, by tables made by hand."""

import pandas as pd

from normprobe.measurements.compare.table import ranking
from normprobe.measurements.embeddings.compared import measures


def table(loudest: float) -> pd.DataFrame:
    rows = {"norm_mean": [2.0, 4.0], "norm_max": [loudest, 5.0], "norm_std": [1.0, 1.0]}
    return pd.DataFrame({"table": ["text", "visual"], "rows": "nonzero_rows", **rows})


def test_how_far_the_loudest_row_stands_out_ranks() -> None:
    found = ranking(
        [
            measures(t)
            for t in (
                table(4.0),
                table(6.0),
            )
        ],
        ["a", "b"],
    )
    assert found["run"].tolist() == ["b", "a"]
    assert found.loc[0, "loudest_ratio"] == 3.0
    assert found.loc[0, "visual_ratio"] == 2.0
