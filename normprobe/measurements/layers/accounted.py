"""What accounts for slower turning in Eq. 13: the norms of visual tokens, or their updates?

Eq. 13 turns a token of norm n by atan2(m sin(phi), n + m cos(phi)), where m is the size of its
update and phi the angle between the two. Three things can set visual tokens apart from text tokens:
n, m and phi. In each layer, the logarithm of the ratio of their angles is divided among the three
by Shapley values: the change that each makes when it goes from visual to text, averaged over all
orders in which the three can go. They add up to what Eq. 13 says of both modalities; the rest is
what Eq. 13, at geometric means, misses.
"""

from itertools import combinations
from math import factorial, isnan
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.measurements.layers.ratios import ratios_to_text
from normprobe.measurements.layers.theory import Drawn, ModalityDraws, eq_13
from normprobe.report.ratio_words import Estimate, Ratio, digits, factor
from normprobe.report.sentences import layer_ranges
from normprobe.schema import PAIR
from normprobe.statistics.resampling import with_intervals

#: What sets the angle of a token by Eq. 13, and what it leaves over.
CAUSES = ("norm", "update_norm", "update_angle")
LOG_PARTS = (*CAUSES, "rest")

#: Which layers a row is about: one, or all those in which visual tokens clearly turn more slowly,
#: or more quickly, than text tokens.
ONE_LAYER, SLOWER, FASTER = "layer", "slower", "faster"
_Columns = dict[str, NDArray[np.float64]]  # [draws, layers]; the first draw is the estimate


def accounted_table(rows: pd.DataFrame, layers: pd.DataFrame) -> pd.DataFrame:
    """How much of the difference in angular velocity norms account for, in Eq. 13's arithmetic."""
    rows = rows[rows["sample_id"].isin(rows.loc[rows["group"] == PAIR, "sample_id"])]
    numbers = sorted(int(layer) for layer in rows.loc[rows["layer"] > 0, "layer"].unique())
    if not numbers:
        return pd.DataFrame(columns=["scope", "layers"])
    drawn = ModalityDraws(rows, numbers)
    columns = _by_layer(drawn)
    ratios = ratios_to_text(layers, "angle")
    states = [ratios[number].state if number in ratios else None for number in numbers]
    clear = np.array([state in (1, -1) for state in states])
    tables = [_table(columns, ONE_LAYER, [[number] for number in numbers], drawn.units, clear)]
    for scope, state in ((SLOWER, -1), (FASTER, 1)):
        places = [place for place, of_layer in enumerate(states) if of_layer == state]
        if places:
            names = [[numbers[place] for place in places]]
            together = _averaged(
                {name: of_layers[:, places] for name, of_layers in columns.items()}
            )
            tables.append(_table(together, scope, names, drawn.units, np.array([True])))
    table = pd.concat(tables, ignore_index=True)
    table.insert(2, "samples", rows["sample_id"].nunique())
    return table


def norms_share(accounted: pd.DataFrame) -> Estimate:
    """How much of visual tokens' slower turning norms account for, over all slower layers."""
    columns = [f"norm_share{end}" for end in ("", "_ci_low", "_ci_high")]
    rows = accounted[accounted["scope"] == SLOWER].reindex(columns=columns)
    return Estimate(*rows.iloc[0].astype(float)) if len(rows) else Estimate(np.nan)


def _by_layer(drawn: ModalityDraws) -> _Columns:
    norm, update = (np.exp(drawn.log_mean(name)) for name in ("log_norm", "log_update"))
    angle, update_angle = np.exp(drawn.log_mean("log_angle")), drawn.mean("update_angle")
    with np.errstate(divide="ignore", invalid="ignore"):  # a layer that moves nothing
        ratio = angle[..., 1] / angle[..., 0]
        parts = _shapley(norm, update, update_angle)
        parts["rest"] = np.log(ratio) - sum(parts.values())
        text_norm = np.stack([norm[..., 1], norm[..., 1]], axis=-1)
        factor = eq_13(text_norm, update, update_angle) / eq_13(norm, update, update_angle)
    return {
        "angle_ratio": ratio,
        **{f"log_{part}": parts[part] for part in LOG_PARTS},
        "visual_angle": angle[..., 0],
        "text_angle": angle[..., 1],
        "visual_angle_at_text_norm": angle[..., 0] * factor[..., 0],
    }


def _shapley(*causes: Drawn) -> _Columns:
    """What each cause adds to the logarithm of the angle on the way from visual to text."""

    def log_angle(of_text: tuple[int, ...]) -> NDArray[np.float64]:
        chosen = [cause[..., int(place in of_text)] for place, cause in enumerate(causes)]
        angle: NDArray[np.float64] = np.log(eq_13(*chosen))
        return angle

    added = {}
    for place, name in enumerate(CAUSES):
        others = [other for other in range(len(causes)) if other != place]
        added[name] = np.zeros(causes[0].shape[:-1])
        for size in range(len(causes)):
            weight = factorial(size) * factorial(len(others) - size) / factorial(len(causes))
            for before in combinations(others, size):
                added[name] += weight * (log_angle((*before, place)) - log_angle(before))
    return added


def _averaged(columns: _Columns) -> _Columns:
    """Several layers as one: means of the logarithms, so that the parts still add up."""
    logs = {f"log_{part}": columns[f"log_{part}"].mean(axis=1, keepdims=True) for part in LOG_PARTS}
    whole = np.log(columns["angle_ratio"])
    ratio = np.exp(whole.mean(axis=1, keepdims=True))
    unknown = np.full_like(ratio, np.nan)
    sizes = {
        "missed": np.abs(whole - columns["log_norm"]).mean(axis=1, keepdims=True),
        "whole": np.abs(whole).mean(axis=1, keepdims=True),
    }
    return {name: unknown for name in columns} | {"angle_ratio": ratio} | logs | sizes


def _table(
    columns: _Columns,
    scope: str,
    layers: list[list[int]],
    units: int,
    clear: NDArray[np.bool_],
) -> pd.DataFrame:
    """Rows with their intervals; shares where visual and text tokens clearly turn differently."""
    drawn = dict(columns)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = np.where(clear, np.log(columns["angle_ratio"]), np.nan)
        for part in LOG_PARTS:
            drawn[f"{part}_share"] = columns[f"log_{part}"] / whole
        missed = columns.get("missed", np.abs(whole - columns["log_norm"]))
        drawn["norm_share_absolute"] = 1 - missed / columns.get("whole", np.abs(whole))
    drawn = {name: values for name, values in drawn.items() if name not in ("missed", "whole")}
    named = {"scope": scope, "layers": [layer_ranges(of_row) for of_row in layers]}
    table = pd.DataFrame({**named, **{name: values[0] for name, values in drawn.items()}})
    return with_intervals(table, drawn, units)


_WAYS = {SLOWER: "more slowly", FASTER: "more quickly"}

_NAMES = dict(
    zip(LOG_PARTS, ("norms", "sizes of updates", "their directions", "the rest"), strict=True)
)


#: Said beside the verdict, which is no intervention.
ARITHMETIC = (
    "Arithmetic on what was measured: `normprobe cause` changes the norms and measures again."
)


def accounted_verdict(accounted: pd.DataFrame) -> str:
    """How much of the difference in angular velocity norms account for by Eq. 13."""
    if accounted.empty:
        return ""
    rows = accounted[accounted["scope"].isin(_WAYS)]
    return " ".join(filter(None, (_sentence(row) for _, row in rows.iterrows())))


def _sentence(row: "pd.Series[Any]") -> str:
    ratio = Ratio(*_with_ends(row, "angle_ratio"))
    ratio = ratio if row["scope"] == SLOWER else ratio.inverse
    way = f"{_WAYS[str(row['scope'])]} in {_layers(str(row['layers']))}"
    if float(digits(ratio.low if ratio.has_interval else ratio.value)) <= 1:
        # Samples without an image have a say in the layers, and none in Eq. 13's arithmetic.
        return f"In the samples with an image alone, it is not shown that they turn {way}."
    numbers = {name: _percents(row, f"{part}_share") for part, name in _NAMES.items()}
    if any(isnan(value) for value, *_ in numbers.values()):
        return ""  # what is left does not add up
    shares = [f"{name} for {_told(*percents)}" for name, percents in numbers.items()]
    shares[0] = shares[0].replace("norms", "norms account", 1)
    if "-" in str(row["layers"]) or "," in str(row["layers"]):
        each = _percents(row, "norm_share_absolute")
        if not isnan(each[0]):
            shares[0] += f" ({_told(*each)} where over- and undershoot do not cancel)"
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
