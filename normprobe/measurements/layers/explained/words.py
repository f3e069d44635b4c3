"""What explained.csv says, in sentences: arithmetic of Eq. 13, and no causes."""

from typing import Any

import pandas as pd

from normprobe.measurements.layers.explained.table import FASTER, PARTS, SLOWER
from normprobe.report.ratio_words import Ratio, factor

_WAYS = {SLOWER: "more slowly", FASTER: "more quickly"}
_NAMES = dict(
    zip(PARTS, ("norms", "sizes of updates", "their directions", "the rest"), strict=True)
)


def explained_verdict(explained: pd.DataFrame) -> str:
    """How much of the difference in angular velocity norms account for by Eq. 13.

    Args:
        explained: ``explained.csv``.

    Returns:
        E.g. "In Eq. 13's arithmetic of turning 3.1 x [2.9, 3.3] more slowly in layers 1-2, norms
        account for 81 % [74, 88] (79 % [72, 86] with over- and undershoot added up), sizes of
        updates for 12 % [8, 15], their directions for 3 % [2, 4], the rest for 4 % [1, 6]." A
        sentence each for layers with slower and with faster visual tokens; empty where there are
        none.
    """
    if explained.empty:
        return ""
    rows = explained[explained["scope"].isin(_WAYS)]
    return " ".join(_sentence(row) for _, row in rows.iterrows())


def _sentence(row: "pd.Series[Any]") -> str:
    ratio = Ratio(*(float(row[f"angle_ratio{end}"]) for end in ("", "_ci_low", "_ci_high")))
    ratio = ratio if row["scope"] == SLOWER else ratio.inverse
    shares = [f"{name} for {_percent(row, f'{part}_share')}" for part, name in _NAMES.items()]
    shares[0] = shares[0].replace("norms", "norms account", 1)
    if "-" in str(row["layers"]) or "," in str(row["layers"]):
        each = _percent(row, "norm_share_absolute")
        shares[0] += f" ({each} where over- and undershoot do not cancel)"
    lows = [row[f"{part}_share{end}"] for part in PARTS for end in ("", "_ci_high")]
    against = any(low < 0 for low in lows)
    return (
        f"In Eq. 13's arithmetic of turning {factor([ratio])} {_WAYS[str(row['scope'])]} in "
        f"{_layers(str(row['layers']))}, {', '.join(shares)}{'; below 0: against it' * against}."
    )


def _layers(ranges: str) -> str:
    return f"layer{'' if ranges.isdecimal() else 's'} {ranges}"


def _percent(row: "pd.Series[Any]", column: str) -> str:
    value, low, high = (100 * float(row[f"{column}{end}"]) for end in ("", "_ci_low", "_ci_high"))
    interval = "" if pd.isna(low) or pd.isna(high) else f" [{low:.0f}, {high:.0f}]"
    return f"{value:.0f} %{interval}".replace("-0 %", "0 %")
