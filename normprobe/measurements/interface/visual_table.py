"""Visual tokens that are mixed from a table, as in Ovis: rows of the table beside the mixtures.

Each visual token is a sum of the table's rows weighted by probabilities (paper: RQ4, Table 3). The
norm of a mixture lies below that of the rows unless one row takes it all or the rows point alike.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.model.find.parts import Parts, weight_of
from normprobe.schema import DECODER_INPUT, PROJECTOR_INPUT, TEXT, VISUAL
from normprobe.statistics.sample_statistics import GROWTH, histogram_of
from normprobe.statistics.weights import row_norms

#: Sources of histogram.csv of an ``interface`` run.
VISUAL_ROWS, VISUAL_TOKENS = "visual table rows", "visual tokens"
TEXT_ROWS, TEXT_TOKENS = "text table rows", "text tokens"
PROBABILITIES = "probabilities"

_TOKENS = {
    VISUAL_TOKENS: (DECODER_INPUT, VISUAL),
    TEXT_TOKENS: (DECODER_INPUT, TEXT),
    PROBABILITIES: (PROJECTOR_INPUT, VISUAL),
}


def visual_table_histogram(rows: pd.DataFrame, parts: Parts) -> pd.DataFrame:
    """Distribution of norms of table rows and of the tokens that come from them."""
    if parts.visual_embedding is None or parts.text_embedding is None:
        return pd.DataFrame(columns=["source", "left", "right", "count"])
    tables = {VISUAL_ROWS: parts.visual_embedding, TEXT_ROWS: parts.text_embedding}
    pieces = [
        _bins(source, *histogram_of(norms[np.isfinite(norms)]))
        for source, part in tables.items()
        for norms in [row_norms(weight_of(part))]
    ]
    pieces += [
        _bins(source, bins, counts)
        for source, (stage, group) in _TOKENS.items()
        for bins, counts in _sample_histograms(rows, stage, group)
    ]
    table = pd.concat(pieces, ignore_index=True)
    return table.groupby(["source", "left", "right"], sort=True)["count"].sum().reset_index()


def _sample_histograms(
    rows: pd.DataFrame, stage: str, group: str
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64]]]:
    chosen = rows[(rows["stage"] == stage) & (rows["group"] == group)]
    yield from zip(chosen["norm_bins"], chosen["norm_counts"], strict=True)


def _bins(source: str, bins: NDArray[np.int32], counts: NDArray[np.int64]) -> pd.DataFrame:
    left = GROWTH ** np.asarray(bins, dtype=np.float64)
    table = pd.DataFrame({"source": source, "left": left, "right": left * GROWTH, "count": counts})
    return table[table["left"] > 0]
