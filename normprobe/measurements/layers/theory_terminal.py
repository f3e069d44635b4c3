"""The assumptions of the paper's theory on a terminal."""

import math

import pandas as pd
from rich.console import Console
from rich.text import Text

from normprobe.report.significant import significant
from normprobe.report.terminal import add_column, new_table, print_notes, print_table

_MOST_WIDE = 15  # characters for layers such as "1-3, 6, 9-31"


def print_assumptions(assumptions: pd.DataFrame, console: Console) -> None:
    """Print ``assumptions.csv``; nothing where it is empty.

    Args:
        assumptions: ``assumptions.csv``.
        console: where to print.
    """
    if assumptions.empty:
        return
    table = new_table("Does the paper's theory hold here? (Section 3)")
    for header in ("assumption", "holds if", "median", "worst", "layer", "holds in"):
        add_column(table, header, left=header in ("assumption", "holds if", "holds in"))
    for _, row in assumptions.iterrows():
        source = "" if row["source"] == "Section 3.1" else f" ({row['source']})"
        table.add_row(
            Text(f"{row['assumption']}{source}"),
            Text(_range(float(row["low"]), float(row["high"]))),
            Text(significant(float(row["median"]), 3)),
            Text(significant(float(row["worst"]), 3)),
            Text(str(row["worst_layer"])),
            Text(_where(row)),
        )
    print_table(table, console)
    print_notes(
        console,
        "By layer. Imbalance, magnitude: visual / text of norm and update norm.",
        "Geometry: update angle, visual - text (rad). Direction: mean cosine of one",
        "modality's turn to the other's states, against 2 / sqrt(d). Eq. 13: correlation",
        "of log angle and log norm over tokens. Eq. 15: cosine, measured - predicted.",
    )


def _range(low: float, high: float) -> str:
    if math.isinf(high):
        return f">= {significant(low, 3)}"
    if math.isinf(low):
        return f"<= {significant(high, 3)}"
    if math.isclose(low, -high):
        return f"±{significant(high, 2)}"
    return f"{significant(low, 2)} to {significant(high, 3)}"


def _where(row: "pd.Series[str]") -> str:
    """The layers where it holds, in words where that is all or none."""
    if row["verdict"] != "holds in some layers":
        return "all layers" if row["verdict"] == "holds" else "none"
    layers = str(row["holds_in"])
    if len(layers) <= _MOST_WIDE:
        return layers
    return layers[: _MOST_WIDE - 4].rpartition(",")[0] + ", ..."
