"""The assumptions of the paper's theory on a terminal."""

import math

import pandas as pd
from rich.console import Console
from rich.text import Text

from normprobe.measurements.layers.theory.assumptions import ASSUMED, EXEMPT, HOLDS
from normprobe.measurements.layers.theory.words import LEGEND, between
from normprobe.report.significant import MISSING, significant
from normprobe.report.terminal import add_column, new_table, print_notes, print_table

_LAYERS = ("holds_in", "exempt_in")
_MOST_WIDE = 10  # characters for layers such as "1-3, 6, 9-31"


def print_assumptions(assumptions: pd.DataFrame, console: Console) -> None:
    """Print ``assumptions.csv``; nothing where it is empty."""
    if assumptions.empty:
        return
    table = new_table("Does the paper's theory hold here? (Section 3)")
    for header in ("assumption", "holds if", "worst", "95 % band", "layer", "holds in"):
        add_column(table, header, left=header in ("assumption", "holds in"))
    for (name, source), judged in assumptions.groupby(["assumption", "source"], sort=False):
        table.add_row(Text(f"{name}" if source == ASSUMED else f"{name} ({source})"))
        for _, row in judged.iterrows():
            layer = row["worst_layer"]
            table.add_row(
                Text(f"  {row['number']}"),
                Text(_range(float(row["low"]), float(row["high"]))),
                Text(significant(float(row["worst"]), 2)),
                Text(between(*row[["worst_band_low", "worst_band_high"]].astype(float)) or MISSING),
                Text(MISSING if pd.isna(layer) else str(int(layer))),
                Text(_where(row)),
            )
    print_table(table, console)
    print_notes(console, LEGEND)


def _range(low: float, high: float) -> str:
    if math.isinf(high):
        return f">= {low:g}"
    if math.isinf(low):
        return f"<= {high:g}"
    return f"±{high:g}" if math.isclose(low, -high) else f"{low:g}-{high:g}"


def _where(row: "pd.Series[str]") -> str:
    """The layers where it holds, in words where that is all or none."""
    layers, exempt = ("" if pd.isna(row[name]) else str(row[name]) for name in _LAYERS)
    if row["verdict"] == EXEMPT:
        return "no say"
    if row["verdict"] == HOLDS and not exempt:
        return "all layers"
    if len(layers) <= _MOST_WIDE:
        return layers or "none"
    return layers[: _MOST_WIDE - 4].rpartition(",")[0] + ", ..."
