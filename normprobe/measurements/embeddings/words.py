"""What embeddings.csv says, in sentences."""

import math

import pandas as pd

from normprobe.measurements.embeddings.shift_words import shift_verdict
from normprobe.report.ratio_words import LOUD, Ratio, ratio_in_words, times, usable
from normprobe.report.readable import significant
from normprobe.runs.run_folder import RunStore
from normprobe.schema import (
    NONZERO_ROWS,
    TEXT,
    VISUAL,
)


def verdict(run: RunStore) -> str:
    """What the tables say, and how far they moved from those of a base."""
    embeddings, shift = run.table("embeddings"), run.rows_of("shift")
    moved = "" if shift is None else shift_verdict(embeddings, shift)
    return " ".join(filter(None, [embeddings_verdict(embeddings), moved]))


def embeddings_verdict(embeddings: pd.DataFrame) -> str:
    """The visual table against the text table, or how far its loudest row stands out."""
    rows = embeddings[embeddings["rows"] == NONZERO_ROWS].set_index("table")
    means = {table: float(rows["norm_mean"].get(table, math.nan)) for table in (VISUAL, TEXT)}
    if not usable(means[TEXT]):
        return ""
    if usable(means[VISUAL]):
        louder = ratio_in_words(
            [Ratio(means[VISUAL] / means[TEXT])], LOUD, "rows of the text table"
        )
        return (
            f"Rows of the visual table are {louder} (mean L2 norm {significant(means[VISUAL])} "
            f"against {significant(means[TEXT])}). No intervals: these are all rows."
        )
    sentence = f"Non-zero text embedding rows have a mean L2 norm of {significant(means[TEXT])}"
    loudest = float(rows["norm_max"].get(TEXT, math.nan))
    if usable(loudest):
        sentence += f"; the loudest has {times(loudest / means[TEXT])} that"
    return sentence + "."
