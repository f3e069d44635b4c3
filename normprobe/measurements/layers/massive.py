"""Massive activations: what ``layers --also massive`` adds to a run, and what it says.

The few dimensions and the few tokens that hold most of what is large, and what is left without
them. ``watchers.MassiveActivations`` sees them.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from normprobe.report.charts import Curve, Panel, by_group
from normprobe.report.figures.style import GROUP_LOOKS, GroupLook
from normprobe.report.ratio_words import LOUD, hold_inverses, ratios_by_layer
from normprobe.report.readable import MISSING, count, significant
from normprobe.report.sentences import layer_names, layers_in_words
from normprobe.report.terminal import NumberColumn
from normprobe.schema import (
    AUDIO,
    BESIDE_GROUPS,
    GEOMETRIC_RATIOS,
    HIGH_NORM,
    MASSIVE_MAGNITUDE,
    MASSIVE_RATIO,
    NON_VISUAL,
    RATIOS_TO_TEXT,
    SINK_RATIO,
    SPECIAL,
    STILL_COSINE,
    TEXT,
    TOKEN_GROUPS,
    VIDEO,
    VISUAL,
)
from normprobe.statistics.resampling import Resampled, Together, with_intervals

#: Metrics of ``layers.csv``.
WITHOUT = ("norm", "cosine", "angle")

#: Behind their names.
SUFFIX = "_without_massive"


#: How many dimensions of a layer and group are told.
DIMENSIONS = 5
_BY = ["layer", "group"]
_COUNTED = ("massive", "massive_by_token_median", "sink", "high_norm", "still")
_SHARES = (*_COUNTED, "top1_share", "top10_share")
_LARGEST = ("peak_max", "peak_to_sequence_median_max", "peak_to_token_median_max")
_ORDER = {group: place for place, group in enumerate((*TOKEN_GROUPS, NON_VISUAL))}


def massive_tables(
    rows: pd.DataFrame, token_text: Callable[[int], str] | None = None
) -> dict[str, pd.DataFrame]:
    """What ``layers --massive`` adds to a run; nothing where the rows are of one without it."""
    if "massive_mean" not in rows:
        return {}
    others = [*BESIDE_GROUPS, VIDEO, AUDIO]  # a watcher sees the pooled groups
    rows = rows[~rows["group"].isin(others) & rows["massive_mean"].notna()]
    named = massive_tokens_table(rows, token_text)
    return {
        "massive": massive_table(rows),
        **({} if named.empty else {"massive_tokens": named}),
        "dimensions": dimensions_table(rows),
    }


def massive_table(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the token groups to massive.csv."""
    groups = rows.groupby(_BY, sort=False)
    table = groups.agg(
        samples=("sample_id", "size"),
        hidden_size=("hidden_size", "first"),
        tokens=("tokens", "sum"),
        **{column: (column, "max") for column in _LARGEST},
    ).reset_index()
    resampled = Resampled(table, rows, _BY)
    draws = {f"{name}_mean": resampled.means(f"{name}_mean", by_tokens=True) for name in _SHARES}
    table["tokens" + SUFFIX] = groups["tokens" + SUFFIX].sum().to_numpy()
    for suffix in ("", SUFFIX):
        tokens = f"tokens{suffix}"
        for name in (f"{name}{suffix}" for name in WITHOUT):
            mean = f"{name}_mean"
            draws[mean] = resampled.means(mean, by_tokens=True, tokens=tokens)
            variance = resampled.covariance(mean, mean, f"{name}_m2", tokens=tokens)
            table[f"{name}_std"] = np.sqrt(variance[0].clip(min=0.0))
        for name, ratio in RATIOS_TO_TEXT.items():
            if name in WITHOUT:
                draws[f"{ratio}{suffix}"] = resampled.to_text(draws[f"{name}{suffix}_mean"])
                means = resampled.geometric_means(f"{name}{suffix}")
                draws[f"{GEOMETRIC_RATIOS[name]}{suffix}"] = resampled.to_text(means)
    for name, drawn in draws.items():
        table[name] = np.where(np.isfinite(drawn[0]), drawn[0], np.nan)
    for name in _COUNTED:
        table[f"{name}_tokens"] = (table[f"{name}_mean"] * table["tokens"]).round().astype(int)
    visual = table["group"] == VISUAL
    together = [
        Together([f"{GEOMETRIC_RATIOS['norm']}{suffix}" for suffix in ("", SUFFIX)], visual),
        *(Together([f"{name}_mean"], visual | (table["group"] == TEXT)) for name in _SHARES),
    ]
    return _in_order(with_intervals(table, draws, resampled.units, resampled.held, together))


def massive_tokens_table(
    rows: pd.DataFrame, token_text: Callable[[int], str] | None
) -> pd.DataFrame:
    """The rows of the token groups to massive_tokens.csv: which tokens are massive.

    Of each sample, layer and group that holds massive tokens the one with the largest magnitude;
    one row for all samples in which it is the same token at the same place and dimension.
    """
    held = rows[rows["massive_mean"] > 0]
    which = [f"at_peak_{name}" for name in ("id", "position", "dimension")]
    table = (
        held.groupby([*_BY, *which], dropna=False, sort=False)
        .agg(
            samples=("sample_id", "size"),
            magnitude=("peak_max", "max"),
            to_sequence_median=("peak_to_sequence_median_max", "max"),
            to_token_median=("at_peak_to_token_median", "max"),
            share=("at_peak_share", "mean"),
        )
        .reset_index()
        .rename(columns=lambda name: name.removeprefix("at_peak_"))
        .astype({"position": int, "dimension": int})
    )
    ids = table.pop("id")
    text = [None if pd.isna(i) or token_text is None else token_text(int(i)) for i in ids]
    table.insert(len(_BY), "token", pd.Series(text, dtype=object))
    table = table.sort_values(["samples", "magnitude"], ascending=False, kind="stable")
    return _in_order(table.groupby(_BY, sort=False).head(DIMENSIONS))


def dimensions_table(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the token groups to dimensions.csv: where the states are large.

    The share of a dimension is the sum of h_d^2 over the group's tokens, over their sum of ||h||^2.
    A row of a sample holds its ten largest. Samples are merged by their sums of ||h||^2. Where a
    dimension is not among the ten of a sample, its share there lies between 0 and the smallest of
    the ten.
    """
    found = []
    for _, members in rows.groupby(_BY, sort=False):
        merged = _merged(members).head(DIMENSIONS)
        place = members[_BY].iloc[:1].merge(merged, how="cross")
        found.append(place.assign(rank=range(1, len(place) + 1)))
    columns = [*_BY, "rank", "dimension", "share", "share_at_most"]
    return _in_order(pd.concat(found)[columns])


def _merged(rows: pd.DataFrame) -> pd.DataFrame:
    """The dimensions that some sample holds, the largest share first."""
    shares = np.stack(rows["dimension_shares"].tolist()).astype(np.float64)
    pointing = np.isfinite(shares).all(axis=1)  # in a sample of zeros no dimension has a share
    squares = rows["norm_mean"] ** 2 + rows["norm_m2"] / rows["tokens"]
    energies = (squares * rows["tokens"]).to_numpy()[pointing, None]
    held_shares = shares[pointing] * (energies / energies.sum())
    smallest = held_shares[:, -1:]
    held = pd.DataFrame(
        {
            "dimension": np.stack(rows["dimensions"].tolist())[pointing].ravel(),
            "share": held_shares.ravel(),
            "known": np.broadcast_to(smallest, held_shares.shape).ravel(),
        }
    )
    merged = held.groupby("dimension").sum().reset_index()
    unknown = (smallest.sum() - merged.pop("known")).clip(lower=0.0)
    return merged.assign(share_at_most=merged["share"] + unknown).sort_values(
        "share", ascending=False, kind="stable"
    )


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    keys = ["layer", "group", *[name for name in ("rank",) if name in table]]
    by_place = table.sort_values(
        keys,
        key=lambda column: column.map(_ORDER) if column.name == "group" else column,
        kind="stable",
    )
    return by_place.reset_index(drop=True)


#: What a massive token is; shown below the numbers.
MASSIVE = (
    f"massive token: its largest magnitude is above {MASSIVE_MAGNITUDE:g} and at least "
    f"{MASSIVE_RATIO:g} times the median magnitude of all tokens of its sequence (Sun et al., "
    "2024)."
)
#: What is told without such tokens.
WITHOUT_MASSIVE = "without: means over the tokens that are massive in no layer."

#: The other kinds of tokens.
KINDS_LEGEND = (
    f"sink: at least {SINK_RATIO:g} times its root mean square in a dimension in which the first "
    "token of the sequence is, too (after Kang et al., 2025). high norm: at least "
    f"{HIGH_NORM:g} times the median norm of its group and sample (after Darcet et al., 2024). "
    f"still: every layer so far has left it at a cosine of at least {STILL_COSINE:g}."
)

_KINDS = {
    "massive": "Massive tokens",
    "massive_by_token_median": "massive are",
    "sink": "Attention sinks",
}

#: Groups whose massive tokens are told.
_TOLD = (VISUAL, TEXT, SPECIAL)

#: A dimension with less of the squared norm of its group is not named.
_NAMED = 0.1


def massive_verdict(
    massive: pd.DataFrame, dimensions: pd.DataFrame, named: pd.DataFrame | None = None
) -> str:
    """How many tokens are massive, what is left without them, and which dimensions are large."""
    sentences = [
        _how_many(massive, "massive", _TOLD) or _none_is_massive(massive),
        _by_token_median(massive),
        "" if named is None else _named_tokens(named, massive["samples"].max()),
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
    peak, ratio = (significant(float(massive[name].max()), 3) for name in _LARGEST[:2])
    return (
        f"No token is massive: no magnitude is above {peak}, or above {ratio} times the median of "
        "its sequence."
    )


def _by_token_median(massive: pd.DataFrame) -> str:
    """What the median of a token's own dimensions makes of it: no loud group moves that."""
    counts = massive[["massive_tokens", "massive_by_token_median_tokens"]]
    if (counts.iloc[:, 0] == counts.iloc[:, 1]).all():
        return ""
    told = _how_many(massive, "massive_by_token_median", _TOLD).removesuffix(".")
    ratio = significant(float(massive["peak_to_token_median_max"].max()), 3)
    told = told or f"none is: {ratio} times at most, of any token"
    return f"By the median of the token itself, which a loud group moves less, {told}."


def _named_tokens(named: pd.DataFrame, samples: int) -> str:
    """The token of each group that is massive in half of the samples or more: where, and how."""
    sentences = []
    named = named.assign(token=named["token"].fillna(""))
    for group in _TOLD:
        rows = named[(named["group"] == group) & (named["samples"] >= samples / 2)]
        if rows.empty:
            continue
        first = rows.sort_values("magnitude").iloc[-1]
        same = rows[(rows["token"] == first["token"]) & (rows["position"] == first["position"])]
        token = "" if group == VISUAL else first["token"]
        where = f"{group} token at position {first['position']}"
        name = f"{token}, a {where}," if token else f"The {where}"
        often = int(same["samples"].max())
        in_some = f" in {often} of {samples} samples" if often < samples else ""
        sentences.append(
            f"{name} is massive{in_some} after "
            f"{layer_names(sorted(set(same['layer'])))}: up to {count(first['magnitude'])} in "
            f"dimension {first['dimension']}, {count(first['to_sequence_median'])} times the "
            f"median magnitude of its sequence and {count(first['to_token_median'])} times its "
            f"own, with up to {significant(100 * same['share'].max(), 3)} % of the squared norms "
            "of its sequence."
        )
    return " ".join(sentences)


def _without(massive: pd.DataFrame) -> str:
    """Visual against text tokens, where some of either are massive: with them, and without."""
    compared = massive[massive["group"].isin([VISUAL, TEXT]) & (massive["massive_tokens"] > 0)]
    visual = _rows(massive, VISUAL)
    visual = visual[visual["layer"].isin(compared["layer"])]
    ratios = [
        ratios_by_layer(visual, f"{GEOMETRIC_RATIOS['norm']}{suffix}") for suffix in ("", SUFFIX)
    ]
    beside = any(hold_inverses(of_layers.values()) for of_layers in ratios)
    told = [
        layers_in_words(of_layers, LOUD, "after", beside_inverses=beside) for of_layers in ratios
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
        f"{_percent(_rows(massive, group), 'top10_share_mean')} of |h|^2 of a {group} token"
        for group in (VISUAL, TEXT)
        if _rows(massive, group)["top10_share_mean"].notna().any()
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
        held.append(f"dimension {int(dimension)} holds {'at least ' * (least != most)}{least} %")
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


_OF_VISUAL = {"group": VISUAL}


def _by_group(title: str, column: str) -> Panel:
    return Panel(title, by_group(column, (VISUAL, TEXT, SPECIAL)), "share")


def _with_and_without(title: str, column: str) -> Panel:
    without = Curve("without massive", column + SUFFIX, GroupLook("#262626", "s", "--"), _OF_VISUAL)
    both = Curve("all tokens", column, GROUP_LOOKS[VISUAL], _OF_VISUAL), without
    return Panel(title, both, "ratio")


MASSIVE_PANELS = (
    _by_group("share of |h|² in largest dim.", "top1_share_mean"),
    _by_group("share of |h|² in 10 largest dim.", "top10_share_mean"),
    _by_group("share of massive tokens", "massive_mean"),
    _with_and_without("visual / text norm", "norm_ratio_to_text"),
    _with_and_without("visual / text angle", "angle_ratio_to_text"),
    Panel(
        "share of visual tokens",
        (
            Curve("sinks", "sink_mean", GroupLook("#882255", "o", "-"), _OF_VISUAL),
            Curve("of high norm", "high_norm_mean", GroupLook("#999933", "s", "--"), _OF_VISUAL),
            Curve("still so far", "still_mean", GroupLook("#44AA99", "^", ":"), _OF_VISUAL),
        ),
        "share",
    ),
)


def _percent_cell(share: float) -> str:
    return MISSING if share != share else f"{100 * share:.1f}"


#: What a terminal shows of massive.csv.
COLUMNS = [
    *(
        NumberColumn((header, group), column, {"group": group}, written)
        for header, column, written in (
            ("massive", "massive_tokens", count),
            ("% in 10 dim.", "top10_share_mean", _percent_cell),
        )
        for group in (VISUAL, TEXT, SPECIAL)
    ),
    *(
        NumberColumn((f"{metric} ratio", words), f"{metric}_ratio_to_text{suffix}", _OF_VISUAL)
        for metric in ("norm", "angle")
        for words, suffix in (("all", ""), ("without", SUFFIX))
    ),
]


def terminal_legend(massive: pd.DataFrame) -> str:
    """What the columns are that a terminal shows; ratios have none without visual tokens."""
    told = [
        "massive: how many tokens of all samples. % in 10 dim.: share of |h|^2 in the ten largest "
        "dimensions of a token.",
        MASSIVE,
    ]
    if not _rows(massive, VISUAL).empty:
        told[1:] = ["ratio: visual / text mean.", MASSIVE, WITHOUT_MASSIVE]
    return " ".join(told)
