"""How a run of ``interface`` is shown: on a terminal, and on the page."""

import pandas as pd
from markupsafe import Markup
from rich.console import Console
from rich.text import Text

from normprobe.measurements.interface.figures import interface_dots, norms_by_stage
from normprobe.report.dots import on_page
from normprobe.report.page.blocks import dots, heading, note
from normprobe.report.page.blocks import shown_table as shown
from normprobe.report.readable import count, significant
from normprobe.report.terminal import (
    ALIGNED,
    GROUP_STYLES,
    add_column,
    new_table,
    nonfinite_note,
    print_notes,
    print_table,
    words,
)
from normprobe.runs.run_folder import RunStore
from normprobe.schema import ROW_SCOPES, STAGES, TABLE_GROUPS

_PLACE = ["stage", "group", "hidden_size", "tokens"]
_NUMBERS = ["norm mean", "norm std", "norm q50", "ratio_to_prompt", "ratio_to_table"]


def show(run: RunStore, console: Console) -> None:
    """Print the norms at the interface."""
    print_interface(run.table("interface"), console, aligned="alignment" in run.record)


def print_interface(interface: pd.DataFrame, console: Console, *, aligned: bool = False) -> None:
    """Print ``interface.csv``: norms by stage and group."""
    table = new_table("L2 norm at the interface" + ALIGNED * aligned)
    for header in ("stage", "d", "tokens", "mean", "std", "median", "x prompt", "x table"):
        add_column(table, header, left=header == "stage")
    shown_of = _shown_of(interface)
    for stage in STAGES:
        rows = shown_of[shown_of["stage"] == stage]
        if rows.empty:
            continue
        table.add_row(
            Text(words(stage), style="bold"), Text(count(float(rows["hidden_size"].iloc[0])))
        )
        for group in (*TABLE_GROUPS[:-1], *ROW_SCOPES):
            for _, row in rows[rows["group"] == group].iterrows():
                table.add_row(
                    Text(f"  {words(group)}"),
                    Text(),
                    Text(count(float(row["tokens"]))),
                    *(Text(significant(float(row[column]))) for column in _NUMBERS),
                    style=GROUP_STYLES.get(group),
                )
    print_table(table, console)
    print_notes(
        console,
        "d: hidden size. std: over tokens, or rows of a table.",
        "x prompt: mean norm / that of the prompts' text tokens at the decoder input.",
        "x table: mean norm / that of the non-zero effective text embeddings.",
        nonfinite_note(interface, "stage"),
    )


def _shown_of(interface: pd.DataFrame) -> pd.DataFrame:
    names = {"mean": "norm mean", "std": "norm std", "q50": "norm q50"}
    return norms_by_stage(interface).rename(columns=names)[[*_PLACE, *_NUMBERS]]


def section(run: RunStore) -> list[Markup]:
    """The norms by stage and group."""
    interface = run.table("interface")
    return [
        heading("L2 norm at the interface"),
        dots(on_page(interface_dots(interface))),
        note(
            "Dots: means on a logarithmic axis; thick: 95 % intervals over images; thin: 5-95 % of "
            "tokens or rows. Dashed, and n x: against the text tokens of the prompts."
        ),
        shown(_shown_of(interface)),
        note("std over tokens or rows of a table; q50 is the median; ratios divide the mean."),
    ]
