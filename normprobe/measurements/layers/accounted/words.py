"""What accounted.csv says, in sentences: arithmetic of Eq. 13, and no causes."""

from typing import Any

import pandas as pd

from normprobe.measurements.layers.accounted.table import FASTER, PARTS, SLOWER
from normprobe.report.ratio_words import Ratio, digits, factor

_WAYS = {SLOWER: "more slowly", FASTER: "more quickly"}
_NAMES = dict(
    zip(PARTS, ("norms", "sizes of updates", "their directions", "the rest"), strict=True)
)


def accounted_verdict(accounted: pd.DataFrame) -> str:
    """How much of the difference in angular velocity norms account for by Eq. 13."""
    if accounted.empty:
        return ""
    rows = accounted[accounted["scope"].isin(_WAYS)]
    return " ".join(_sentence(row) for _, row in rows.iterrows())


def _sentence(row: "pd.Series[Any]") -> str:
    ratio = Ratio(*_with_ends(row, "angle_ratio"))
    ratio = ratio if row["scope"] == SLOWER else ratio.inverse
    way = f"{_WAYS[str(row['scope'])]} in {_layers(str(row['layers']))}"
    if float(digits(ratio.low if ratio.has_interval else ratio.value)) <= 1:
        # Samples without an image have a say in the layers, and none in Eq. 13's arithmetic.
        return f"In the samples with an image alone, it is not shown that they turn {way}."
    numbers = {name: _percents(row, f"{part}_share") for part, name in _NAMES.items()}
    shares = [f"{name} for {_told(*percents)}" for name, percents in numbers.items()]
    shares[0] = shares[0].replace("norms", "norms account", 1)
    if "-" in str(row["layers"]) or "," in str(row["layers"]):
        each = _told(*_percents(row, "norm_share_absolute"))
        shares[0] += f" ({each} where over- and undershoot do not cancel)"
    # An interval that holds 0 works neither way.
    against = any((value if pd.isna(high) else high) < 0 for value, _, high in numbers.values())
    return (
        f"In Eq. 13's arithmetic of turning {factor([ratio])} {way}, {', '.join(shares)}"
        f"{'; below 0: against it' * against}."
    )


def _layers(ranges: str) -> str:
    return f"layer{'' if ranges.isdecimal() else 's'} {ranges}"


def _with_ends(row: "pd.Series[Any]", column: str) -> list[float]:
    return [float(row[f"{column}{end}"]) for end in ("", "_ci_low", "_ci_high")]


def _percents(row: "pd.Series[Any]", column: str) -> list[float]:
    """Whole percents of a share and its ends, none of them -0."""
    return [round(100 * share, 0) + 0.0 for share in _with_ends(row, column)]


def _told(value: float, low: float, high: float) -> str:
    interval = "" if pd.isna(low) or pd.isna(high) else f" [{low:.0f}, {high:.0f}]"
    return f"{value:.0f} %{interval}"
