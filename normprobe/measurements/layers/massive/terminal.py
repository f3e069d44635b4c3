"""Massive activations on a terminal."""

from collections.abc import Callable

import pandas as pd
from rich.console import Console
from rich.text import Text

from normprobe.measurements.layers.massive.without import SUFFIX
from normprobe.measurements.layers.massive.words import MASSIVE
from normprobe.report.significant import MISSING, count, significant
from normprobe.report.terminal import add_column, new_table, print_notes, print_table
from normprobe.report.terminal_tables import GROUP_STYLES, selected_layers
from normprobe.schema import TEXT, VISUAL

_GROUPS = (VISUAL, TEXT)
_RATIOS = ("norm_ratio_to_text", "angle_ratio_to_text")
_LEGEND = (
    "massive: how many tokens of all samples. % in 10 dim.: share of |h|^2 in the ten largest "
    "dimensions of a token. ratio: visual / text mean."
)


def print_massive(massive: pd.DataFrame, console: Console) -> None:
    """Print ``massive.csv``: visual beside text tokens, with massive tokens beside without."""
    rows = {group: massive[massive["group"] == group].set_index("layer") for group in _GROUPS}
    numbers = sorted(int(layer) for layer in massive["layer"].unique())
    shown = selected_layers(numbers)
    table = new_table("Massive activations")
    add_column(table, "\nlayer")
    for header in ("massive", "% in 10 dim."):
        for place, group in enumerate(_GROUPS):
            title = Text(f"{header if place == 0 else ''}\n")
            title.append(group, style=GROUP_STYLES[group])
            add_column(table, title)
    for header in ("norm ratio", "angle ratio"):
        add_column(table, f"{header}\nall")
        add_column(table, "\nwithout")
    for layer in shown:
        cells = [str(layer)]
        cells += [_cell(rows[group], layer, "massive_tokens", count) for group in _GROUPS]
        cells += [_cell(rows[group], layer, "top10_share_mean", _percent) for group in _GROUPS]
        for ratio in _RATIOS:
            for suffix in ("", SUFFIX):
                cells.append(_cell(rows[VISUAL], layer, ratio + suffix, significant))
        table.add_row(*cells)
    print_table(table, console)
    print_notes(
        console,
        f"{_LEGEND} {MASSIVE}",
        ""
        if len(shown) == len(numbers)
        else f"{len(shown)} of {len(numbers)} layers shown; massive.csv has all.",
    )


def _cell(rows: pd.DataFrame, layer: int, column: str, shown: Callable[[float], str]) -> str:
    return shown(float(rows[column].loc[layer])) if layer in rows.index else MISSING


def _percent(share: float) -> str:
    return MISSING if pd.isna(share) else f"{100 * share:.1f}"
