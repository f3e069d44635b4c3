"""What a terminal shows of a run of ``grounding``."""

import pandas as pd
from rich.console import Console
from rich.text import Text

from normprobe.measurements.grounding.gaps import gaps_of
from normprobe.measurements.grounding.measure import QUANTITIES
from normprobe.measurements.grounding.words import verdict
from normprobe.report.ratio_words import Estimate
from normprobe.report.readable import MISSING, significant
from normprobe.report.terminal import (
    ALIGNED,
    add_column,
    new_table,
    print_notes,
    print_sentence,
    print_table,
    selected_layers,
)
from normprobe.runs.run_folder import RunStore

_SHOWN = ("inside", "gap")  # outside is inside - gap


def show(run: RunStore, console: Console) -> None:
    """Print the gaps layer by layer, and what they say."""
    print_grounding(run.table("grounding"), console, aligned="alignment" in run.record)
    if run.has_table("left_out"):
        left_out = len(run.table("left_out"))
        samples = "1 sample" if left_out == 1 else f"{left_out} samples"
        print_notes(console, f"{samples} left out: left_out.csv says why.")
    print_sentence(verdict(run), console)


def print_grounding(grounding: pd.DataFrame, console: Console, *, aligned: bool = False) -> None:
    """Print ``grounding.csv``: cosine and score of a word and visual tokens, and their gaps."""
    table = new_table("Words and what they mean" + ALIGNED * aligned)
    add_column(table, "\nlayer")
    for quantity in QUANTITIES:
        for place, header in enumerate((*_SHOWN, "95 % band")):
            add_column(table, f"{quantity if place == 0 else ''}\n{header}")
    gaps = {quantity: gaps_of(grounding, quantity) for quantity in QUANTITIES}
    numbers = [int(layer) for layer in grounding["layer"]]
    shown = selected_layers(numbers)
    for _, row in grounding[grounding["layer"].isin(shown)].iterrows():
        cells = [Text(str(int(row["layer"])))]
        for quantity in QUANTITIES:
            cells += [Text(significant(float(row[f"{quantity}_{side}"]), 3)) for side in _SHOWN]
            cells.append(Text(_band(gaps[quantity].get(int(row["layer"])))))
        table.add_row(*cells)
    print_table(table, console)
    has_scores = bool(gaps["score"])
    print_notes(
        console,
        f"{int(grounding['samples'].max())} samples with a word and a box around what it means.",
        "cosine: of a word's tokens and the visual tokens inside and outside of the box,",
        "after the layer (0: decoder input). score: q k of the word before the softmax,",
        "mean over heads. gap: inside - outside (Eq. 21). 95 % band: of the gap over",
        "images, in all layers together.",
        "" if has_scores else "No scores: this model returns attention weights alone.",
        ""
        if len(shown) == len(numbers)
        else f"{len(shown)} of {len(numbers)} layers shown; grounding.csv has all.",
    )


def _band(gap: Estimate | None) -> str:
    if gap is None or not gap.has_interval:
        return MISSING
    return f"[{significant(gap.low, 2)}, {significant(gap.high, 2)}]"
