"""What a terminal shows of branches.csv."""

from math import nan

import pandas as pd
from rich.console import Console
from rich.text import Text

from normprobe.measurements.layers.branches.words import BRANCH_WORDS, branches_verdict
from normprobe.report.significant import significant
from normprobe.report.terminal import (
    add_column,
    new_table,
    print_notes,
    print_sentence,
    print_table,
)
from normprobe.report.terminal_tables import ALIGNED, GROUP_STYLES, selected_layers
from normprobe.schema import TEXT, VISUAL

#: Metric and its header; of more than two branches the first alone fits.
_SHOWN = {"angle": "angle", "relative_update": "rel.update"}


def print_branches(branches: pd.DataFrame, console: Console, *, aligned: bool = False) -> None:
    """Print each branch's angle and relative update: visual beside text, layer by layer."""
    present = [name for name in BRANCH_WORDS if (branches["branch"] == name).any()]
    groups = [group for group in (VISUAL, TEXT) if (branches["group"] == group).any()]
    metrics = list(_SHOWN)[: 2 if len(present) < 3 else 1]
    cells = branches.set_index(["layer", "branch", "group"])
    means = {metric: cells[f"{metric}_mean"].to_dict() for metric in metrics}
    shown = [(name, metric, group) for name in present for metric in metrics for group in groups]

    table = new_table("Branches" + ALIGNED * aligned)
    add_column(table, "\n\nlayer")
    for name, metric, group in shown:
        first = group == groups[0]
        words = BRANCH_WORDS[name] if first and metric == metrics[0] else ""
        title = Text(f"{words}\n{_SHOWN[metric] if first else ''}\n")
        title.append(group, style=GROUP_STYLES[group])
        add_column(table, title)
    numbers = sorted(int(layer) for layer in branches["layer"].unique())
    for layer in selected_layers(numbers):
        texts = [Text(str(layer))]
        for name, metric, group in shown:
            key = (layer, name, group)
            text = significant(means[metric].get(key, nan))
            texts.append(Text(text, style=GROUP_STYLES[group]))
        table.add_row(*texts)
    print_table(table, console)
    print_notes(
        console,
        "Each branch by itself: radians by which it turns the state that it is added to,",
        "and its relative update |a| / |x|. branches.csv has all.",
    )
    print_sentence(branches_verdict(branches), console)
