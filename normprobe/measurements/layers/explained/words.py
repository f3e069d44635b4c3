"""What explained.csv says, in sentences."""

from typing import Any

import pandas as pd

from normprobe.measurements.layers.explained.table import FASTER, PARTS, SLOWER
from normprobe.report.ratio_words import Ratio, factor

_WAYS = {SLOWER: "more slowly", FASTER: "more quickly"}
_CAUSES = dict(
    zip(PARTS, ("norms", "sizes of updates", "their directions", "the rest"), strict=True)
)


def explained_verdict(explained: pd.DataFrame) -> str:
    """How much of the difference in angular velocity the norms alone explain.

    Args:
        explained: ``explained.csv``.

    Returns:
        E.g. "Why more slowly in layers 1-2 (geometric means: 3.1 x [2.9, 3.3])? Norms explain 81 %
        [74, 88], sizes of updates 12 % [8, 15], their directions 3 % [2, 4], the rest 4 % [1, 6]
        (Eq. 13)." A sentence each for layers with slower and with faster visual tokens; empty
        where there are none.
    """
    if explained.empty:
        return ""
    rows = explained[explained["scope"].isin(_WAYS)]
    return " ".join(_sentence(row) for _, row in rows.iterrows())


def _sentence(row: "pd.Series[Any]") -> str:
    ratio = Ratio(*(float(row[f"angle_ratio{end}"]) for end in ("", "_ci_low", "_ci_high")))
    ratio = ratio if row["scope"] == SLOWER else ratio.inverse
    shares = [f"{name} {_percent(row, part)}" for part, name in _CAUSES.items()]
    shares[0] = shares[0].replace("norms", "Norms explain", 1)
    against = any(row[f"{part}_share_ci_high"] < 0 for part in PARTS)
    closing = "Eq. 13; below 0: against it" if against else "Eq. 13"
    return (
        f"Why {_WAYS[str(row['scope'])]} in {_layers(str(row['layers']))} (geometric means: "
        f"{factor([ratio])})? {', '.join(shares)} ({closing})."
    )


def _layers(ranges: str) -> str:
    return f"layer{'' if ranges.isdecimal() else 's'} {ranges}"


def _percent(row: "pd.Series[Any]", part: str) -> str:
    value, low, high = (
        100 * float(row[f"{part}_share{end}"]) for end in ("", "_ci_low", "_ci_high")
    )
    interval = "" if pd.isna(low) or pd.isna(high) else f" [{low:.0f}, {high:.0f}]"
    return f"{value:.0f} %{interval}".replace("-0 %", "0 %")
