"""Tidy tables and flat ones, a column a number: ``norm_mean``, ``norm_ci_low``, ``norm_q05``.

Oracles and made tables are flat; the package knows tidy tables alone.
"""

from collections.abc import Sequence

import pandas as pd

from normprobe.schema import MODALITIES, PAIR
from normprobe.tidy import BAND, COUNTS, INTERVAL, QUANTILES, QUANTITY, keys_of, tidy

#: The keys of each tidy table.
KEYS = {
    "layers": ["layer", "group"],
    "theory": ["layer", "group"],
    "accounted": ["scope", "layers"],
    "turns": ["layer", "turn", "group"],
    "branches": ["layer", "branch", "group"],
    "massive": ["layer", "group"],
    "interface": ["stage", "group"],
    "embeddings": ["table", "rows"],
    "grounding": ["layer"],
    "images": ["sample_id", "image", "layer"],
    "attention": ["layer", "query"],
    "heads": ["layer", "query", "head"],
    "training": ["training_step", "layer", "group", "dtype"],
    "gradients": ["training_step", "part"],
    "ranking": ["run", "step"],
    "survey": ["model"],
}
_SUFFIXES = {
    "std": "_std",
    "sample_mean": "_sample_mean",
    "sample_std": "_sample_std",
    "geometric_mean": "_geometric_mean",
    **{name: f"_{name}" for name in QUANTILES},
}
_ENDS = {
    **dict(zip(INTERVAL, ("_ci_low", "_ci_high"), strict=True)),
    **dict(zip(BAND, ("_band_low", "_band_high"), strict=True)),
}
#: Quantities that end like an estimate of another one, by table.
_WHOLE = {"theory": ("update_angle_std", "log_norm_std"), "survey": ("table_std",)}
#: What the name of a quantity holds whose number has no ``_mean`` behind it.
_PLAIN = ("ratio", "share", "_max", "_min", "_gap", "_tokens", "hidden_size", "nonfinite", "_ratio")
#: More of them by how they begin or end, and some of which the mean has that ending.
_PLAIN_STARTS = ("log_", "visual_angle", "text_angle", "angle_below_resolution")
_PLAIN_ENDS = ("_difference", "_correlation", "_cv", "_slope", "_std")
_MEANS = ("top1_share", "top10_share")
#: Other columns of a flat table: names, which stand in a table of their own.
_NAMES = ("loudest_token", "loudest_position", "loudest_samples")
#: Counts of one number alone.
_OWN_COUNTS = {
    "lag_angle_samples": ("samples", ("lag_angle",)),
    "score_samples": ("samples", ("score_inside", "score_outside", "score_gap")),
    "samples_with_first_turn": (
        "samples",
        ("norm_geometric_ratio_to_first_turn", "angle_geometric_ratio_to_first_turn"),
    ),
}


def place_of(column: str, whole: Sequence[str] = ()) -> tuple[str, str]:
    """The quantity and the estimate of a flat column; some quantities end like an estimate."""
    for estimate, end in _ENDS.items():
        if column.endswith(end):
            quantity, of = place_of(column.removesuffix(end), whole)
            return quantity, estimate if of == "mean" else f"{of.removesuffix('mean')}{estimate}"
    if column in whole:
        return column, "mean"
    for estimate, suffix in sorted(_SUFFIXES.items(), key=lambda item: -len(item[1])):
        if column.endswith(suffix):
            return column.removesuffix(suffix), estimate
    return column.removesuffix("_mean"), "mean"


def tidied(name: str, flat: pd.DataFrame) -> pd.DataFrame:
    """A flat table as the tidy one of that name; one that is not tidy as it is."""
    if name not in KEYS or QUANTITY in flat:
        return flat
    if name == "embeddings":
        flat = flat.rename(columns={"count": "tokens"})
    if name == "theory" and "group" not in flat:
        return _theory(flat)
    keys = [key for key in KEYS[name] if key in flat]
    counts = [column for column in COUNTS if column in flat]
    numbers: dict[str, dict[str, pd.Series]] = {}
    for column in flat.columns.drop([*keys, *counts]):
        if column in _NAMES or column in _OWN_COUNTS or flat[column].dtype in (object, "str"):
            continue
        quantity, estimate = place_of(str(column), _WHOLE.get(name, ()))
        numbers.setdefault(quantity, {})[estimate] = flat[column].astype(float).to_numpy()
    for column, (count, quantities) in _OWN_COUNTS.items():
        if column in flat:
            for quantity in quantities:
                if quantity in numbers:
                    numbers[quantity][count] = flat[column].to_numpy()
    return tidy(flat[[*keys, *counts]].reset_index(drop=True), numbers)


def _theory(flat: pd.DataFrame) -> pd.DataFrame:
    """Numbers of one modality stand in rows of its group."""
    if flat.empty:
        return pd.DataFrame(columns=[*KEYS["theory"], QUANTITY, "samples"])
    pairs, parts = flat, []
    for group in MODALITIES:
        of_group = [column for column in flat if f"_{group}" in str(column) and _of(column, group)]
        named = {column: str(column).replace(f"_{group}", "") for column in of_group}
        own = flat[["layer", *(c for c in COUNTS if c in flat), *of_group]].rename(columns=named)
        parts.append(own.assign(group=group))
        pairs = pairs.drop(columns=of_group)
    whole = [pairs.assign(group=PAIR), *parts]
    table = pd.concat([tidied("theory", part) for part in whole if len(part)], ignore_index=True)
    order = [PAIR, *MODALITIES]
    places = table["group"].map(order.index)
    return (
        table.assign(place=places)
        .sort_values(["layer", "place"], kind="stable")
        .drop(columns="place")
        .reset_index(drop=True)
    )


def _of(column: str, group: str) -> bool:
    bare = str(column)
    for end in _ENDS.values():
        bare = bare.removesuffix(end)
    return bare.endswith(f"_{group}") and not bare.endswith("_to_text")


def loudest_of(flat: pd.DataFrame) -> pd.DataFrame:
    """The names that a flat table of layers or of an interface holds, as loudest.csv."""
    keys = [key for key in ("layer", "stage", "group") if key in flat]
    renamed = {name: name.removeprefix("loudest_") for name in _NAMES}
    held = flat[flat["loudest_position"].notna()][[*keys, *_NAMES]]
    return held.rename(columns=renamed).reset_index(drop=True)


def flat(table: pd.DataFrame) -> pd.DataFrame:
    """A tidy table as a flat one: a row a cell."""
    keys = keys_of(table)
    counts = [name for name in COUNTS if name in table]
    frame = table[[*keys, *counts]].drop_duplicates(keys).set_index(keys)
    columns = {}
    for quantity, rows in table.groupby(QUANTITY, sort=False):
        rows = rows.set_index(keys)
        for estimate in rows.columns.drop([QUANTITY, *counts]):
            if rows[estimate].notna().any():
                columns[flat_name(str(quantity), str(estimate))] = rows[estimate].reindex(
                    frame.index
                )
    return pd.concat([frame, pd.DataFrame(columns, index=frame.index)], axis=1).reset_index()


def flat_theory(table: pd.DataFrame) -> pd.DataFrame:
    """theory.csv as a flat table: a row a layer, ``log_norm_std_visual`` of one modality."""
    pairs = flat(table[table["group"] == PAIR]).drop(columns="group").set_index("layer")
    for group in MODALITIES:
        of_group = flat(table[table["group"] == group]).set_index("layer").drop(columns="group")
        own = of_group.drop(columns=[name for name in COUNTS if name in of_group])
        pairs = pairs.join(own.rename(columns=lambda name, group=group: _of_group(name, group)))
    return pairs.reset_index()


def theory_column(quantity: str, group: str) -> str:
    """The flat column of a mean of theory.csv."""
    mean = flat_name(quantity, "mean")
    return mean if group == PAIR else _of_group(mean, group)


def _of_group(column: str, group: str) -> str:
    end = next((end for end in _ENDS.values() if column.endswith(end)), "")
    return f"{column.removesuffix(end)}_{group}{end}"


def flat_name(quantity: str, estimate: str) -> str:
    """The column of an estimate."""
    if estimate in _SUFFIXES:
        return quantity + _SUFFIXES[estimate]
    plain = quantity.startswith(_PLAIN_STARTS) or quantity.endswith(_PLAIN_ENDS)
    plain = plain or any(part in quantity for part in _PLAIN)
    mean = quantity if plain and quantity not in _MEANS else f"{quantity}_mean"
    if estimate == "mean":
        return mean
    kind, _, end = estimate.rpartition("_")
    if kind in ("sample", "geometric"):
        return f"{quantity}_{kind}_mean{_ENDS[end]}"
    return mean + _ENDS[estimate]
