"""The rows of a training to the tables of its run."""

from collections.abc import Iterable

import pandas as pd

from normprobe.measurements.training.alarms import Alarm
from normprobe.quantities import declared
from normprobe.report.readable import significant
from normprobe.schema import SPECIAL, STRUCTURAL


def training_tables(rows: pd.DataFrame, alarms: list[Alarm]) -> dict[str, pd.DataFrame]:
    """Everything that a run of a training contains.

    Where a training was resumed at an earlier step, what it had measured from there on is replaced:
    its rows are in an earlier part of the rows.
    """
    declarations = declared("measurements.training")
    if not rows.empty:
        for attempt, step in rows.groupby("attempt")["training_step"].min().items():
            rows = rows[(rows["attempt"] >= attempt) | (rows["training_step"] < step)]
        rows = rows.rename(columns={"stage": "part"})
    layer = rows["layer"].notna() if "layer" in rows else pd.Series(False, rows.index)
    states = rows[layer].reindex(columns=declarations["training"].columns)
    counts = ["training_step", "layer", "tokens", "nonfinite"]
    weights = rows[~layer].reindex(columns=declarations["gradients"].columns)
    return {
        "training": states.astype(dict.fromkeys(counts, int)).reset_index(drop=True),
        "gradients": weights.reset_index(drop=True),
        "alarms": pd.DataFrame(alarms, columns=declarations["alarms"].columns),
    }


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


#: What a log calls the numbers of a state.
_LOGGED = {
    "norm_mean": "norm",
    "angle_mean": "angle",
    "relative_update_mean": "relative_update",
    "norm_geometric_ratio_to_text": "norm_to_text",
}


def log_values(step: int, rows: pd.DataFrame, alarms: Iterable[Alarm]) -> dict[str, float]:
    """The rows of a step under names that stay, such as ``normprobe/layers/visual/norm/12``.

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
    values |= {f"normprobe/alarm/{alarm.name}": 1.0 for alarm in alarms if alarm.step == step}
    return {name: float(value) for name, value in values.items() if value == value}
