"""How a run of ``align`` is shown: how the norm was chosen, and the size of its weights."""

import pandas as pd
from rich.console import Console

from normprobe.report.readable import count, significant
from normprobe.report.terminal import add_column, new_table, print_facts, print_table
from normprobe.runs.run_folder import RunStore


def show(run: RunStore, console: Console) -> None:
    """Print where the norm stands and how it was chosen."""
    print_alignment(run.table("align"), console)


def print_alignment(alignment: pd.DataFrame, console: Console) -> None:
    """Print what ``align`` inserts."""
    row = alignment.iloc[0]
    hidden, gain = float(row["hidden_size"]), significant(float(row["gain"]))
    scale = None if pd.isna(row["scale"]) else significant(float(row["scale"]))
    facts = {
        "norm behind": row["after"],
        "target": f"{row['target']}, L2 norm {significant(float(row['target_norm']))}",
        "gain": f"{gain} in each of {count(hidden)} dimensions; bias 0",
        "model's own scale": "none: it changes the rows otherwise" if scale is None else scale,
    }
    print_facts(facts, console)


def print_norm_statistics(statistics: pd.DataFrame, console: Console) -> None:
    """Print the size of gain and bias (Table 5)."""
    table = new_table("Alignment norm: gain and bias")
    for header in ("parameter", "d", "L2 norm", "mean |w|", "std |w|", "std / sqrt(d)"):
        add_column(table, header, left=header == "parameter")
    for _, row in statistics.iterrows():
        numbers = (row["l2_norm"], row["mean_abs"], row["std_abs"], row["sem_abs"])
        cells = [significant(float(number)) for number in numbers]
        table.add_row(str(row["parameter"]), count(float(row["hidden_size"])), *cells)
    print_table(table, console)
