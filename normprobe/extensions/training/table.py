"""The rows of a training to the tables of its run."""

from collections.abc import Iterable, Mapping

import pandas as pd

from normprobe.extensions.training.alarms import Alarm
from normprobe.report.readable import significant
from normprobe.schema import GEOMETRIC_RATIOS, SPECIAL, STRUCTURAL
from normprobe.tidy import declared, tidy


def training_tables(rows: pd.DataFrame, alarms: list[Alarm]) -> dict[str, pd.DataFrame]:
    """Everything that a run of a training contains.

    Where a training was resumed at an earlier step, what it had measured from there on is replaced:
    its rows are in an earlier part of the rows.
    """
    tables = declared(__package__)
    if not rows.empty:
        for attempt, step in rows.groupby("attempt")["training_step"].min().items():
            rows = rows[(rows["attempt"] >= attempt) | (rows["training_step"] < step)]
        rows = rows.rename(columns={"stage": "part"})
    layer = rows["layer"].notna() if "layer" in rows else pd.Series(False, rows.index)
    return {
        "training": _tidy(rows[layer], [*tables["training"].keys, "tokens"], _STATES),
        "gradients": _tidy(rows[~layer], tables["gradients"].keys, _WEIGHTS),
        "alarms": pd.DataFrame(alarms, columns=tables["alarms"].columns),
    }


#: Quantities and estimates, and the columns of the rows that hold them.
_STATES = {
    "nonfinite": {"mean": "nonfinite"},
    "norm": {"mean": "norm_mean", "geometric_mean": "norm_geometric_mean"},
    "norm_max": {"mean": "norm_max"},
    GEOMETRIC_RATIOS["norm"]: {"mean": GEOMETRIC_RATIOS["norm"]},
    "angle": {"mean": "angle_mean"},
    "relative_update": {"mean": "relative_update_mean"},
}
_WEIGHTS = {name: {"mean": name} for name in ("gradient_norm", "update_ratio")}


def _tidy(
    rows: pd.DataFrame, keys: list[str], columns: Mapping[str, Mapping[str, str]]
) -> pd.DataFrame:
    """Rows with a column a number as a tidy table."""
    named = [column for of in columns.values() for column in of.values()]
    rows = rows.reindex(columns=[*keys, *named]).reset_index(drop=True)
    whole = [key for key in ("training_step", "layer") if key in keys]
    numbers = {
        quantity: {estimate: rows[column] for estimate, column in of.items()}
        for quantity, of in columns.items()
    }
    return tidy(rows[keys].astype(dict.fromkeys(whole, int)), numbers)


#: By less, mean norms of the same weights and batch differ, with other dropout.
_SAME_WEIGHTS = 0.05


def weights_differ(before: pd.DataFrame, now: pd.DataFrame) -> str:
    """How far norms are from those that an earlier attempt had of the same batch; empty: not."""
    keys = ["training_step", "layer", "group", "tokens"]
    both = before.reindex(columns=[*keys, "norm_mean"]).merge(now, on=keys, suffixes=("_old", ""))
    far = (both["norm_mean"] / both["norm_mean_old"] - 1).abs().fillna(0.0)
    if far.empty or far.max() <= _SAME_WEIGHTS:
        return ""
    worst = both.iloc[int(far.argmax())]
    old, new = (significant(worst[name]) for name in ("norm_mean_old", "norm_mean"))
    where = f"of {worst['group']} tokens after layer {int(worst['layer'])}"
    return f"the mean norm {where} was {old} at this step and is {new} as training goes on"


def not_loaded(before: pd.DataFrame, now: Mapping[str, float]) -> list[str]:
    """Parts whose weights are those of the very first step, though a training had moved them."""
    if "weights_before" not in before:
        return []
    rows = before.dropna(subset="weights_before").sort_values(["attempt", "training_step"])
    parts = rows.groupby("stage")
    first, last = parts["weights_before"].first(), parts["weights_after"].last()
    return [part for part in first.index if now.get(part) == first[part] != last[part]]


#: What a log calls the numbers of a state.
_LOGGED = {
    "norm_mean": "norm",
    "angle_mean": "angle",
    "relative_update_mean": "relative_update",
    "norm_geometric_ratio_to_text": "norm_to_text",
}


def log_values(step: int, rows: pd.DataFrame, alarms: Iterable[Alarm]) -> dict[str, float]:
    """Rows and alarms of a step under names that stay, as ``normprobe/layers/visual/norm/12``.

    Of layers without angles nothing is logged, nor of special and structural tokens.
    """
    values = {"normprobe/step": float(step)}
    for row in rows.to_dict("records"):
        if isinstance(part := row.get("stage"), str):
            values[f"normprobe/gradient/{part}"] = row["gradient_norm"]
            values[f"normprobe/update/{part}"] = row["update_ratio"]
        elif row["group"] not in (SPECIAL, STRUCTURAL):
            layer = int(row["layer"])
            if layer == 0 or row["angle_mean"] == row["angle_mean"]:
                for column, name in _LOGGED.items():
                    values[f"normprobe/layers/{row['group']}/{name}/{layer}"] = row[column]
    values |= {f"normprobe/alarm/{alarm.name}": 1.0 for alarm in alarms}
    return {name: float(value) for name, value in values.items() if value == value}
