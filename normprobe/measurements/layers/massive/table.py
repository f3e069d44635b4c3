"""Sample rows to massive.csv and dimensions.csv: the tables of ``layers --also massive``."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.measurements.layers.massive.without import SUFFIX, WITHOUT
from normprobe.schema import (
    AUDIO,
    GEOMETRIC_RATIOS,
    IMAGE,
    NON_VISUAL,
    PAIR,
    RATIOS_TO_TEXT,
    TEXT,
    TOKEN_GROUPS,
    VIDEO,
    VISUAL,
)
from normprobe.statistics.resampling import Resampled, Together, with_intervals

#: How many dimensions of a layer and group are told.
DIMENSIONS = 5

_BY = ["layer", "group"]
_COUNTED = ("massive", "sink", "high_norm", "still")
_SHARES = (*_COUNTED, "top1_share", "top10_share")
_LARGEST = ("peak_max", "peak_to_median_max")
_ORDER = {group: place for place, group in enumerate((*TOKEN_GROUPS, NON_VISUAL))}


def massive_tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """What ``--also massive`` adds to a run; nothing where the rows are of one without it."""
    if "massive_mean" not in rows:
        return {}
    others = [PAIR, IMAGE, VIDEO, AUDIO]  # a watcher sees the pooled groups
    rows = rows[~rows["group"].isin(others) & rows["massive_mean"].notna()]
    return {"massive": massive_table(rows), "dimensions": dimensions_table(rows)}


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
                draws[f"{ratio}{suffix}"] = _to_text(table, draws[f"{name}{suffix}_mean"])
                means = resampled.geometric_means(f"{name}{suffix}")
                draws[f"{GEOMETRIC_RATIOS[name]}{suffix}"] = _to_text(table, means)
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


def _to_text(table: pd.DataFrame, means: NDArray[np.float64]) -> NDArray[np.float64]:
    """``[draws, rows of the table]``: each mean over that of the layer's text tokens."""
    text = table[table["group"] == TEXT]
    place_of_text = dict(zip(text["layer"], text.index, strict=True))
    beside = np.array([place_of_text.get(layer, -1) for layer in table["layer"]])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios: NDArray[np.float64] = np.where(beside >= 0, means / means[:, beside], np.nan)
    return ratios


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
    return table.sort_values(
        keys, key=lambda column: column.map(_ORDER) if column.name == "group" else column
    ).reset_index(drop=True)
