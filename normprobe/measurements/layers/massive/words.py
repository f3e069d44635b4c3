"""What massive.csv and dimensions.csv say, in sentences."""

from collections.abc import Sequence

import pandas as pd

from normprobe.measurements.layers.massive.without import SUFFIX
from normprobe.report.layer_words import layer_names, layers_in_words
from normprobe.report.ratio_words import LOUD, ratios_by_layer
from normprobe.report.significant import significant
from normprobe.schema import GEOMETRIC_RATIOS, SPECIAL, TEXT, VISUAL
from normprobe.statistics.loud_tokens import (
    HIGH_NORM,
    MASSIVE_MAGNITUDE,
    MASSIVE_RATIO,
    SINK_RATIO,
    STILL_COSINE,
)

#: What a massive token is, and what is told without such tokens; shown below the numbers.
MASSIVE = (
    f"massive token: its largest magnitude is above {MASSIVE_MAGNITUDE:g} and at least "
    f"{MASSIVE_RATIO:g} times its median magnitude (Sun et al., 2024). without: means over the "
    "tokens that are massive in no layer."
)
#: The other kinds of tokens.
KINDS = (
    f"sink: at least {SINK_RATIO:g} times its root mean square in a dimension in which the first "
    "token of the sequence is, too (after Kang et al., 2025). high norm: at least "
    f"{HIGH_NORM:g} times the median norm of its group and sample (after Darcet et al., 2024). "
    f"still: every layer so far has left it at a cosine of at least {STILL_COSINE:g}."
)

_KINDS = {"massive": "Massive tokens", "sink": "Attention sinks"}

#: A dimension with less of the squared norm of its group is not named.
_NAMED = 0.1


def massive_verdict(massive: pd.DataFrame, dimensions: pd.DataFrame) -> str:
    """How many tokens are massive, what is left without them, and which dimensions are large."""
    sentences = [
        _how_many(massive, "massive", (VISUAL, TEXT, SPECIAL)) or _none_is_massive(massive),
        _without(massive),
        _few_dimensions(massive),
        _named_dimensions(dimensions),
        _how_many(massive, "sink", (VISUAL,)),
        _still(massive),
    ]
    return " ".join(filter(None, sentences))


def _rows(massive: pd.DataFrame, group: str) -> pd.DataFrame:
    return massive[massive["group"] == group].sort_values("layer")


def _how_many(massive: pd.DataFrame, kind: str, groups: Sequence[str]) -> str:
    """E.g. "Massive tokens: up to 2.5 of 64 visual tokens a sample after layers 2-30."."""
    clauses = []
    for group in groups:
        rows = _rows(massive, group)
        rows = rows[rows[f"{kind}_tokens"] > 0]
        if rows.empty:
            continue
        counts = (rows[f"{kind}_tokens"] / rows["samples"]).tolist()
        tokens = (rows["tokens"] / rows["samples"]).tolist()
        most = counts.index(max(counts))
        up_to = "up to " * (len(set(counts)) > 1)
        clauses.append(
            f"{up_to}{_number(counts[most])} of {_number(tokens[most])} {group} tokens a sample "
            f"after {layer_names(rows['layer'].tolist())}"
        )
    return f"{_KINDS[kind]}: {', '.join(clauses)}." if clauses else ""


def _none_is_massive(massive: pd.DataFrame) -> str:
    peak, ratio = (
        significant(float(massive[name].max()), 3) for name in ("peak_max", "peak_to_median_max")
    )
    return (
        f"No token is massive: no magnitude is above {peak}, or above {ratio} times the median of "
        "its token."
    )


def _without(massive: pd.DataFrame) -> str:
    """Visual against text tokens, where some of either are massive: with them, and without."""
    compared = massive[massive["group"].isin([VISUAL, TEXT]) & (massive["massive_tokens"] > 0)]
    visual = _rows(massive, VISUAL)
    visual = visual[visual["layer"].isin(compared["layer"])]
    told = [
        layers_in_words(
            ratios_by_layer(visual, f"{GEOMETRIC_RATIOS['norm']}{suffix}"), LOUD, "after"
        )
        for suffix in ("", SUFFIX)
    ]
    if not all(told):
        return ""
    return (
        f"Against {TEXT} tokens, visual tokens are {told[0]} with massive tokens, and {told[1]} "
        "without them."
    )


def _few_dimensions(massive: pd.DataFrame) -> str:
    """What the ten largest dimensions of a token hold, over all layers."""
    parts = [
        f"{_percent(rows, 'top10_share_mean')} of |h|^2 of a {group} token"
        for group in (VISUAL, TEXT)
        if len(rows := _rows(massive, group))
    ]
    if not parts:
        return ""
    width = int(massive["hidden_size"].iloc[0])
    return f"The ten largest of {width} dimensions hold {' and '.join(parts)} (means over tokens)."


def _named_dimensions(dimensions: pd.DataFrame) -> str:
    """The dimensions that hold much of all visual tokens together, where they hold most."""
    rows = dimensions[(dimensions["group"] == VISUAL) & (dimensions["share"] >= _NAMED)]
    if rows.empty:
        return ""
    layer = int(rows.sort_values("share")["layer"].iloc[-1])
    told = rows[rows["layer"] == layer].sort_values("rank")
    held = []
    for dimension, *shares in told[["dimension", "share", "share_at_most"]].itertuples(index=False):
        least, most = (significant(100 * share, 3) for share in shares)
        held.append(f"dimension {dimension} holds {'at least ' * (least != most)}{least} %")
    where = f"after layer {layer}" if layer else "at the decoder input"
    return f"Of the squared norm of all visual tokens {where}, {', '.join(held)}."


def _still(massive: pd.DataFrame) -> str:
    """How many visual tokens no layer has turned."""
    rows = _rows(massive, VISUAL)
    if rows.empty or rows["still_tokens"].iloc[-1] == 0:
        return ""
    held = _percent(rows.tail(1), "still_mean")
    return f"Every layer leaves {held} of visual tokens at a cosine of at least {STILL_COSINE:g}."


def _percent(rows: pd.DataFrame, column: str) -> str:
    """``42 to 44 % [40, 47]``: the smallest and the largest share, and their intervals."""
    ends = rows[[column, f"{column}_band_low", f"{column}_band_high"]].astype(float) * 100
    shares, low, high = ends[column], ends.iloc[:, 1].min(), ends.iloc[:, 2].max()
    interval = "" if pd.isna(low) or pd.isna(high) else f" [{low:.0f}, {high:.0f}]"
    values = dict.fromkeys(f"{share:.0f}" for share in (shares.min(), shares.max()))
    return f"{' to '.join(values)} %{interval}"


def _number(value: float) -> str:
    """``576``, ``2.5``: whole numbers as such."""
    return f"{value:.0f}" if value == round(value) else significant(value, 2 if value < 10 else 3)
