"""Massive activations: what ``layers --also massive`` adds to a run, and what it says.

The few dimensions and the few tokens that hold most of what is large, and what is left without
them. ``watchers.MassiveActivations`` sees them.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from normprobe.report.charts import Curve, Panel, by_group
from normprobe.report.figures.style import GROUP_LOOKS, GroupLook
from normprobe.report.ratio_words import Estimate, ratios_by_layer
from normprobe.report.readable import MISSING, count, readable_token, significant
from normprobe.report.sentences import LayerPhrases, layer_findings, layers_named
from normprobe.report.terminal import NumberColumn
from normprobe.report.verdict import Finding
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
from normprobe.statistics.resampling import Draws, Resampled, Together, add_intervals
from normprobe.tidy import BAND, Numbers, along, declared, in_order, select, tidy, wide

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
_GROUPS = (*TOKEN_GROUPS, NON_VISUAL)
_ORDER = {group: place for place, group in enumerate(_GROUPS)}


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
    cells = groups.agg(samples=("sample_id", "size"), tokens=("tokens", "sum")).reset_index()
    numbers: Numbers = {"hidden_size": {"mean": groups["hidden_size"].first().to_numpy()}}
    numbers |= {name: {"mean": groups[name].max().to_numpy()} for name in _LARGEST}
    resampled = Resampled(cells, rows, _BY)
    drawn: Draws = {}
    for name in _SHARES:
        drawn[name, "mean"] = resampled.means(f"{name}_mean", by_tokens=True)
    for suffix in ("", SUFFIX):
        tokens = f"tokens{suffix}"
        counted = {} if not suffix else {"tokens": groups[tokens].sum().to_numpy()}
        for metric in WITHOUT:
            name, mean = f"{metric}{suffix}", f"{metric}{suffix}_mean"
            drawn[name, "mean"] = resampled.means(mean, by_tokens=True, tokens=tokens)
            variance = resampled.covariance(mean, mean, f"{name}_m2", tokens=tokens)
            numbers[name] = {"std": np.sqrt(variance[0].clip(min=0.0)), **counted}
        for metric, ratio in RATIOS_TO_TEXT.items():
            if metric in WITHOUT:
                name = f"{metric}{suffix}"
                drawn[f"{ratio}{suffix}", "mean"] = resampled.to_text(drawn[name, "mean"])
                geometric = resampled.to_text(resampled.geometric_means(name))
                drawn[f"{GEOMETRIC_RATIOS[metric]}{suffix}", "mean"] = geometric
                numbers[f"{ratio}{suffix}"] = dict(counted)
                numbers[f"{GEOMETRIC_RATIOS[metric]}{suffix}"] = dict(counted)
    for (name, _), draws in drawn.items():
        estimate = np.where(np.isfinite(draws[0]), draws[0], np.nan)
        numbers[name] = {"mean": estimate, **numbers.get(name, {})}
    for name in _COUNTED:
        held = numbers[name]["mean"] * cells["tokens"].to_numpy()
        numbers[f"{name}_tokens"] = {"mean": held.round()}
    visual = cells["group"] == VISUAL
    together = [
        Together([f"{GEOMETRIC_RATIOS['norm']}{suffix}" for suffix in ("", SUFFIX)], visual),
        *(Together([name], visual | (cells["group"] == TEXT)) for name in _SHARES),
    ]
    table = declared(__package__)["massive"]
    add_intervals(numbers, drawn, resampled.units, resampled.held, together, table=table)
    return in_order(tidy(cells, numbers), group=_GROUPS)


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
    "massive_by_token_median": "Massive by the median of the token itself",
    "sink": "Attention sinks",
}

#: Groups whose massive tokens are told.
_TOLD = (VISUAL, TEXT, SPECIAL)

#: A dimension with less of the squared norm of its group is not named.
_NAMED = 0.1

_WITHOUT_MASSIVE = LayerPhrases(
    "norm_without_massive",
    "Without massive tokens, visual tokens have a larger norm than text tokens",
    "Without massive tokens, visual tokens have a smaller norm than text tokens",
    "Without massive tokens, norm of visual and text tokens",
    "after",
)


def massive_findings(
    massive: pd.DataFrame, dimensions: pd.DataFrame, named: pd.DataFrame | None = None
) -> list[Finding]:
    """How many tokens are massive, what is left without them, and which dimensions are large."""
    numbers = wide(massive)
    return [
        *(_how_many(numbers, "massive", _TOLD) or [_none_is_massive(numbers)]),
        *_by_token_median(numbers),
        *([] if named is None else _named_tokens(named, numbers["samples"].max())),
        *_without(massive, numbers),
        *_few_dimensions(massive),
        *_named_dimensions(dimensions),
        *_how_many(numbers, "sink", (VISUAL,)),
        _still(massive),
    ]


def _rows(massive: pd.DataFrame, group: str) -> pd.DataFrame:
    return massive[massive["group"] == group].sort_values("layer")


def _how_many(massive: pd.DataFrame, kind: str, groups: Sequence[str]) -> list[Finding]:
    """E.g. "Massive tokens: up to 2.5 of 64 visual tokens a sample after layers 2-30."."""
    found = []
    for group in groups:
        rows = _rows(massive, group)
        depth = rows["layer"].nunique()
        rows = rows[rows[f"{kind}_tokens"] > 0]
        if rows.empty:
            continue
        counts = (rows[f"{kind}_tokens"] / rows["samples"]).tolist()
        tokens = (rows["tokens"] / rows["samples"]).tolist()
        most = counts.index(max(counts))
        up_to = "up to " * (len(set(counts)) > 1)
        told = (
            f"{_KINDS[kind]}: {up_to}{_number(counts[most])} of {_number(tokens[most])} {group} "
            f"tokens a sample {layers_named(rows['layer'].tolist(), depth, 'after')}."
        )
        found.append(Finding(f"{kind}.{group}", told, {"tokens": Estimate(counts[most])}))
    return found


def _none_is_massive(massive: pd.DataFrame) -> Finding:
    peak, ratio = (significant(float(massive[name].max()), 3) for name in _LARGEST[:2])
    return Finding(
        "massive",
        f"No token is massive: no magnitude is above {peak}, or above {ratio} x the median of "
        "its sequence.",
    )


def _by_token_median(massive: pd.DataFrame) -> list[Finding]:
    """What the median of a token's own dimensions makes of it: no group of large norm moves it."""
    counts = massive[["massive_tokens", "massive_by_token_median_tokens"]]
    if (counts.iloc[:, 0] == counts.iloc[:, 1]).all():
        return []
    kind = "massive_by_token_median"
    ratio = significant(float(massive["peak_to_token_median_max"].max()), 3)
    none = Finding(kind, f"{_KINDS[kind]}: none, of any token {ratio} x at most.")
    return _how_many(massive, kind, _TOLD) or [none]


def _named_tokens(named: pd.DataFrame, samples: int) -> list[Finding]:
    """The token of each group that is massive in half of the samples or more: where, and how."""
    found = []
    named = named.assign(token=named["token"].fillna(""))
    for group in _TOLD:
        rows = named[(named["group"] == group) & (named["samples"] >= samples / 2)]
        if rows.empty:
            continue
        first = rows.sort_values("magnitude").iloc[-1]
        same = rows[(rows["token"] == first["token"]) & (rows["position"] == first["position"])]
        token = "" if group == VISUAL else first["token"]
        where = f"{group} token at position {first['position']}"
        name = f"{readable_token(token)}, a {where}," if token else f"The {where}"
        often = int(same["samples"].max())
        in_some = f" in {often} of {samples} samples" if often < samples else ""
        layers = layers_named(sorted(set(same["layer"])), named["layer"].nunique(), "after")
        found.append(
            Finding(
                f"massive_token.{group}",
                f"{name} is massive{in_some} {layers}: up to {count(first['magnitude'])} in "
                f"dimension {first['dimension']}.",
            )
        )
        found.append(
            Finding(
                f"massive_token.{group}.ratios",
                f"That is {count(first['to_sequence_median'])} x the median magnitude of its "
                f"sequence, {count(first['to_token_median'])} x its own.",
            )
        )
        held = significant(100 * same["share"].max(), 3)
        told = f"It has up to {held} % of the squared norms of its sequence."
        found.append(Finding(f"massive_token.{group}.share", told))
    return found


def _without(massive: pd.DataFrame, numbers: pd.DataFrame) -> list[Finding]:
    """Visual against text tokens without massive ones, where some of either are massive."""
    compared = numbers[numbers["group"].isin([VISUAL, TEXT]) & (numbers["massive_tokens"] > 0)]
    visual = massive[(massive["group"] == VISUAL) & massive["layer"].isin(compared["layer"])]
    ratios = select(visual, f"{GEOMETRIC_RATIOS['norm']}{SUFFIX}")
    return layer_findings(ratios_by_layer(along(ratios, visual["layer"])), _WITHOUT_MASSIVE)


def _few_dimensions(massive: pd.DataFrame) -> list[Finding]:
    """What the ten largest dimensions of a token hold, over all layers."""
    found = []
    for group in (VISUAL, TEXT):
        rows = select(massive, "top10_share", group=group)
        if rows["mean"].notna().any():
            width = int(select(massive, "hidden_size")["mean"].iloc[0])
            told = (
                f"The ten largest of {width} dimensions hold up to {_percent(rows)} of the "
                f"squared norm of a {group} token (mean)."
            )
            found.append(Finding(f"top10_share.{group}", told))
    return found


def _named_dimensions(dimensions: pd.DataFrame) -> list[Finding]:
    """The dimensions that hold much of all visual tokens together, where they hold most."""
    rows = dimensions[(dimensions["group"] == VISUAL) & (dimensions["share"] >= _NAMED)]
    if rows.empty:
        return []
    layer = int(rows.sort_values("share")["layer"].iloc[-1])
    told = rows[rows["layer"] == layer].sort_values("rank")
    where = f"after layer {layer}" if layer else "at the decoder input"
    found = []
    for dimension, *shares in told[["dimension", "share", "share_at_most"]].itertuples(index=False):
        least, most = (significant(100 * share, 3) for share in shares)
        held = f"{'at least ' * (least != most)}{least} %"
        words = f"Dimension {int(dimension)} holds {held} of the squared norm of visual tokens"
        found.append(Finding(f"dimension.{int(dimension)}", f"{words} {where}."))
    return found


def _still(massive: pd.DataFrame) -> Finding:
    """How many visual tokens no layer has turned."""
    rows = select(massive, "still", group=VISUAL).tail(1)
    if rows.empty or not rows["mean"].iloc[0] > 0:
        return Finding("still", "")
    held = _percent(rows)
    return Finding(
        "still",
        f"Every layer leaves {held} of visual tokens at a cosine of at least {STILL_COSINE:g}.",
    )


def _percent(rows: pd.DataFrame) -> str:
    """``44 % [42, 47]``: the largest share, and its interval."""
    shares = rows[["mean", *BAND]].to_numpy(float) * 100
    share, low, high = shares[np.nanargmax(shares[:, 0])]
    interval = "" if pd.isna(low) or pd.isna(high) else f" [{low:.0f}, {high:.0f}]"
    return f"{share:.0f} %{interval}"


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
    _by_group("share of |h|² in largest dim.", "top1_share"),
    _by_group("share of |h|² in 10 largest dim.", "top10_share"),
    _by_group("share of massive tokens", "massive"),
    _with_and_without("visual / text norm", "norm_ratio_to_text"),
    _with_and_without("visual / text angle", "angle_ratio_to_text"),
    Panel(
        "share of visual tokens",
        (
            Curve("sinks", "sink", GroupLook("#882255", "o", "-"), _OF_VISUAL),
            Curve("of high norm", "high_norm", GroupLook("#999933", "s", "--"), _OF_VISUAL),
            Curve("still so far", "still", GroupLook("#44AA99", "^", ":"), _OF_VISUAL),
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
            ("% in 10 dim.", "top10_share", _percent_cell),
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
    if (massive["group"] == VISUAL).any():
        told[1:] = ["ratio: visual / text mean.", MASSIVE, WITHOUT_MASSIVE]
    return " ".join(told)
