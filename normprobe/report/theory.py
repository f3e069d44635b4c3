"""The verdicts on the paper's theory, printed below the layers, and the sentence under them."""

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


def theory_verdict(theory: pd.DataFrame, assumptions: pd.DataFrame) -> str:
    """How many assumptions hold, and prediction against measurement at the last predicted layer.

    Args:
        theory: ``theory.csv``.
        assumptions: ``assumptions.csv``.
    """
    if assumptions.empty:
        return ""
    assumed = assumptions[assumptions["source"] == "Section 3.1"]
    holding = int((assumed["verdict"] == "holds").sum())
    sentence = f"{holding} of {len(assumed)} assumptions hold in every layer."
    predicted = theory[theory["predicted_cross_modal_cosine_mean"].notna() & (theory["layer"] > 0)]
    if len(predicted):
        last = predicted.iloc[-1]
        sentence += (
            f" After layer {int(last['layer'])} Eq. 15 predicts a cross-modal cosine of "
            f"{significant(float(last['predicted_cross_modal_cosine_mean']), 2)}; measured "
            f"{significant(float(last['cross_modal_cosine_mean']), 2)}."
        )
    lags = theory[theory["lag_angle_mean"].notna() & (theory["layer"] > 0)]
    if len(lags):
        last = lags.iloc[-1]
        sentence += (
            f" The lag angle (Eq. 17) is {significant(float(last['lag_angle_mean']), 2)} rad after "
            f"layer {int(last['layer'])}"
        )
        having, samples = int(last["lag_angle_samples"]), int(last["samples"])
        if having < samples:
            sentence += f", in the {having} of {samples} samples that begin with a cosine above 0"
        sentence += "."
    return sentence


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
