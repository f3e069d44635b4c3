"""What a terminal shows of a run of ``layers``."""

import pandas as pd
from rich.console import Console
from rich.text import Text

from normprobe.measurements.layers.branches.terminal import print_branches
from normprobe.measurements.layers.massive.terminal import print_massive
from normprobe.measurements.layers.theory.terminal import print_assumptions
from normprobe.measurements.layers.theory.words import theory_verdict
from normprobe.measurements.layers.words import massive_words, run_verdict
from normprobe.report.significant import MISSING, significant
from normprobe.report.terminal import (
    add_column,
    new_table,
    print_notes,
    print_sentence,
    print_table,
)
from normprobe.report.terminal_tables import ALIGNED, GROUP_STYLES, nonfinite_note, selected_layers
from normprobe.runs.run_folder import RunStore
from normprobe.schema import TEXT, TOKEN_GROUPS, VISUAL


def show(run: RunStore, console: Console) -> None:
    """Print the layers, and what they say."""
    layers = run.table("layers")
    aligned = "alignment" in run.record
    print_layers(layers, console, aligned=aligned)
    print_sentence(run_verdict(run), console)
    if run.has_table("images"):
        print_notes(console, "images.csv: each image of the samples that have several.")
    if run.has_table("branches"):
        print_branches(run.table("branches"), console, aligned=aligned)
    if run.has_table("massive"):
        print_massive(run.table("massive"), console)
        print_sentence(massive_words(run), console)


def show_theory(run: RunStore, console: Console) -> None:
    """Print the assumptions of the theory, and which of them hold."""
    assumptions = run.table("assumptions")
    print_assumptions(assumptions, console)
    print_sentence(theory_verdict(run.table("theory"), assumptions), console)


def print_layers(layers: pd.DataFrame, console: Console, *, aligned: bool = False) -> None:
    """Print ``layers.csv``: visual beside text, or whichever groups exist, layer by layer."""
    present = [group for group in (VISUAL, TEXT, *TOKEN_GROUPS) if (layers["group"] == group).any()]
    groups = list(dict.fromkeys(present))[:2]
    by_layer = {group: layers[layers["group"] == group].set_index("layer") for group in groups}
    numbers = sorted(int(layer) for layer in layers["layer"].unique())
    shown = selected_layers(numbers)

    table = new_table("Decoder layers" + ALIGNED * aligned)
    add_column(table, "\nlayer")
    for header in ("norm", "cosine", "angle", "rel.update"):
        for place, group in enumerate(groups):
            title = Text(f"{header if place == 0 else ''}\n")
            title.append(group, style=GROUP_STYLES.get(group, ""))
            add_column(table, title)
    flagged = False
    for layer in shown:
        cells = [Text(str(layer))]
        rows = [by_layer[group][by_layer[group].index == layer] for group in groups]
        for column in ("norm_mean", "cosine_mean", "angle_mean", "relative_update_mean"):
            for group, row in zip(groups, rows, strict=True):
                text = _layer_cell(row, column)
                flagged |= text.endswith("*")
                cells.append(Text(text, style=GROUP_STYLES.get(group, "")))
        table.add_row(*cells)
    print_table(table, console)
    print_notes(
        console,
        "Means over tokens of the L2 norm after the layer (layer 0: decoder input);",
        "of cosine and angle (radians per layer) between layer input x and output h;",
        "and of the relative update |h - x| / |x|.",
        "* below what the stored numbers resolve." if flagged else "",
        ""
        if len(shown) == len(numbers)
        else f"{len(shown)} of {len(numbers)} layers shown; layers.csv has all.",
        nonfinite_note(layers, "layer"),
    )


def _layer_cell(row: pd.DataFrame, column: str) -> str:
    if row.empty or column not in row:
        return MISSING
    value = float(row[column].iloc[0])
    if column == "cosine_mean":
        return MISSING if pd.isna(value) else f"{value:.4f}"
    flag = column == "angle_mean" and row.get("angle_below_resolution", pd.Series()).eq(True).any()
    return significant(value) + ("*" if flag else "")
