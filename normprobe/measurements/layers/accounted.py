"""What accounts for slower turning in Eq. 13: the norms of visual tokens, or their updates?

Eq. 13 turns a token of norm n by atan2(m sin(phi), n + m cos(phi)), where m is the size of its
update and phi the angle between the two. Three things can set visual tokens apart from text tokens:
n, m and phi. In each layer, the logarithm of the ratio of their angles is divided among the three
by Shapley values: the change that each makes when it goes from visual to text, averaged over all
orders in which the three can go. They add up to what Eq. 13 says of both modalities; the rest is
what Eq. 13, at geometric means, misses.
"""

from dataclasses import astuple
from itertools import combinations
from math import factorial, isnan

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.measurements.layers.theory import Drawn, ModalityDraws, eq_13
from normprobe.report.ratio_words import (
    Estimate,
    Ratio,
    digits,
    estimate_of,
    ratios_to_text,
)
from normprobe.report.sentences import layer_ranges
from normprobe.report.verdict import OPEN, Finding
from normprobe.schema import PAIR
from normprobe.statistics.resampling import add_intervals
from normprobe.tidy import QUANTITY, Numbers, declared, tidy

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
        return pd.DataFrame(columns=["scope", "layers", QUANTITY])
    drawn = ModalityDraws(rows, numbers)
    columns = _by_layer(drawn)
    ratios = ratios_to_text(layers, "angle")
    states = [ratios[number].state if number in ratios else None for number in numbers]
    clear = np.array([state in (1, -1) for state in states])
    samples = rows["sample_id"].nunique()
    named = [[number] for number in numbers]
    tables = [_table(columns, ONE_LAYER, named, samples, drawn.units, clear)]
    for scope, state in ((SLOWER, -1), (FASTER, 1)):
        places = [place for place, of_layer in enumerate(states) if of_layer == state]
        if places:
            names = [[numbers[place] for place in places]]
            together = _averaged(
                {name: of_layers[:, places] for name, of_layers in columns.items()}
            )
            tables.append(_table(together, scope, names, samples, drawn.units, np.array([True])))
    return pd.concat(tables, ignore_index=True)


def norms_share(accounted: pd.DataFrame) -> Estimate:
    """How much of visual tokens' slower turning norms account for, over all slower layers."""
    return estimate_of(accounted, "norm_share", scope=SLOWER)


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
    samples: int,
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
    named = [layer_ranges(of_row) for of_row in layers]
    cells = pd.DataFrame({"scope": scope, "layers": named, "samples": samples})
    numbers: Numbers = {name: {"mean": values[0]} for name, values in drawn.items()}
    draws = {(name, "mean"): values for name, values in drawn.items()}
    add_intervals(numbers, draws, units, table=declared(__package__)["accounted"])
    return tidy(cells, numbers)


_WAYS = {SLOWER: "more slowly", FASTER: "more quickly"}

_NAMES = dict(
    zip(LOG_PARTS, ("norms", "update sizes", "update directions", "the rest"), strict=True)
)


#: Said beside the verdict, which is no intervention.
ARITHMETIC = "This is arithmetic: `normprobe cause` changes the norms and measures again."


def accounted_findings(accounted: pd.DataFrame) -> list[Finding]:
    """How much of the difference in angular velocity norms account for by Eq. 13."""
    if accounted.empty:
        return []
    told = accounted.loc[accounted["scope"].isin(_WAYS), ["scope", "layers"]].drop_duplicates()
    found = [each for keys in told.to_numpy() for each in _of_layers(accounted, *keys)]
    return [*found, Finding("accounted.arithmetic", ARITHMETIC)] if found else []


def _of_layers(accounted: pd.DataFrame, scope: str, layers: str) -> list[Finding]:
    def number(quantity: str) -> Estimate:
        return estimate_of(accounted, quantity, scope=scope, layers=layers)

    ratio = Ratio(*astuple(number("angle_ratio")))
    ratio = ratio if scope == SLOWER else ratio.inverse
    name, where = f"accounted.{scope}", _layers(layers)
    if float(digits(ratio.low if ratio.has_interval else ratio.value)) <= 1:
        # Samples without an image have a say in the layers, and none in Eq. 13's arithmetic.
        told = f"In samples with an image alone, turning {_WAYS[scope]} is {OPEN} in {where}."
        return [Finding(name, told)]
    shares = {part: number(f"{part}_share") for part in LOG_PARTS}
    numbers = {part: _percents(share) for part, share in shares.items()}
    if any(isnan(value) for value, *_ in numbers.values()):
        return []  # what is left does not add up
    found = [
        Finding(
            name,
            f"By Eq. 13, norms account for {_percent(*numbers['norm'])} of turning {_WAYS[scope]} "
            f"in {where}.",
            {"norm_share": shares["norm"]},
        )
    ]
    each = number("norm_share_absolute")
    several = "-" in layers or "," in layers
    if several and not isnan(each.value) and _percents(each)[0] != numbers["norm"][0]:
        told = f"Layer by layer, over- and undershoot not cancelled: {_percent(*_percents(each))}."
        found.append(Finding(f"{name}.absolute", told, {"norm_share_absolute": each}))
    # An interval that holds 0 works neither way.
    against = any((value if pd.isna(high) else high) < 0 for value, _, high in numbers.values())
    others = ", ".join(f"{_NAMES[part]} {numbers[part][0]:.0f} %" for part in LOG_PARTS[1:])
    against_it = "; below 0: against it" * against
    told = f"By Eq. 13, {others}{against_it}."
    found.append(
        Finding(f"{name}.others", told, {f"{part}_share": shares[part] for part in shares})
    )
    return found


def _layers(ranges: str) -> str:
    return f"layer{'' if ranges.isdecimal() else 's'} {ranges}"


def _percents(share: Estimate) -> list[float]:
    """Whole percents of a share and its ends, none of them -0."""
    return [round(100 * end, 0) + 0.0 for end in astuple(share)]


def _percent(value: float, low: float, high: float) -> str:
    interval = "" if pd.isna(low) or pd.isna(high) else f" [{low:.0f}, {high:.0f}]"
    return f"{value:.0f} %{interval}"
