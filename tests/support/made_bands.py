"""Intervals and bands around the numbers of a made table."""

from collections.abc import Sequence

import pandas as pd


def with_bands(
    table: pd.DataFrame, columns: Sequence[str], interval: float = 0.06, band: float = 0.12
) -> pd.DataFrame:
    """The table with the ends of both, as shares of each number; cosines end at 1."""
    ends = {
        f"{column}_{kind}_{end}": (table[column] + sign * share * table[column].abs()).clip(
            upper=1.0 if "cosine" in column else None
        )
        for column in columns
        for kind, share in (("ci", interval), ("band", band))
        for end, sign in (("low", -1), ("high", 1))
    }
    return table.assign(**ends)
