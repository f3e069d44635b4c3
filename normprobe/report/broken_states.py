"""Which states of a model are no vectors to measure: not finite, zero, or moved by no layer."""

from collections.abc import Iterator

import pandas as pd

from normprobe.report.layer_words import layer_names
from normprobe.schema import DECODER_INPUT, STRUCTURAL, TOKEN_GROUPS, VISUAL


def broken_states(table: pd.DataFrame) -> list[str]:
    """What is wrong with the states that a table is made of, a line each token group and fault."""
    if "nonfinite" not in table:
        return []
    lines = []
    table = _of_all_samples(table)
    decoder = table[table["stage"] == DECODER_INPUT] if "stage" in table else table
    if STRUCTURAL in set(decoder["group"]) and VISUAL not in set(decoder["group"]):
        lines.append("visual tokens: none, because other pixels change no token of the image")
    for group in TOKEN_GROUPS:
        rows = table[table["group"] == group]
        lines += [f"{group} tokens: {fault}" for fault in _faults(rows)]
    if "update_norm_mean" in table:
        moved = table[table["tokens"] > 0].groupby("layer")["update_norm_mean"].max()
        if (still := moved[moved == 0]).size:
            layers = layer_names([int(layer) for layer in still.index])
            lines.append(f"no token is moved in {layers}: every update is exactly zero")
    return lines


def _of_all_samples(table: pd.DataFrame) -> pd.DataFrame:
    """Counts and largest lengths, one row a layer or stage and group."""
    place = "stage" if "stage" in table else "layer"
    lengths = {name: (name, "max") for name in ("norm_mean", "update_norm_mean") if name in table}
    groups = table.groupby([place, "group"], sort=False)
    return groups.agg(
        tokens=("tokens", "sum"), nonfinite=("nonfinite", "sum"), **lengths
    ).reset_index()


def broken_states_sentence(table: pd.DataFrame) -> str:
    """``broken_states`` as sentences of a verdict; empty where nothing is wrong."""
    return " ".join(f"{line.capitalize()}." for line in broken_states(table))


def _faults(rows: pd.DataFrame) -> Iterator[str]:
    lost, left = rows["nonfinite"], rows["tokens"]
    if (none := (lost > 0) & (left == 0)).any():
        yield f"none has finite numbers {_places(rows[none])}"
    if (some := (lost > 0) & (left > 0)).any():
        worst = int(lost[some].max())
        total = int((lost + left)[some].max())
        few = f"{worst} of {total}" if some.sum() == 1 else f"up to {worst} of {total}"
        yield f"{few} have no finite numbers {_places(rows[some])}, and are left out"
    if (zero := (left > 0) & (rows["norm_mean"] == 0)).any():
        yield f"all are zero {_places(rows[zero])}, so they have no direction"


def _places(rows: pd.DataFrame) -> str:
    """Where: layers, or stages of the interface."""
    if "layer" in rows:
        return f"in {layer_names([int(layer) for layer in rows['layer']])}"
    return f"at {', '.join(stage.replace('_', ' ') for stage in rows['stage'])}"
