"""What a terminal shows of a run of ``embeddings``."""

import pandas as pd
from rich.console import Console
from rich.text import Text

from normprobe.measurements.embeddings.shift_terminal import print_shift
from normprobe.measurements.embeddings.shift_words import shift_verdict
from normprobe.measurements.embeddings.words import embeddings_verdict
from normprobe.report.readable import MISSING, SPACE, count, significant
from normprobe.report.terminal import (
    GROUP_STYLES,
    add_column,
    new_table,
    print_notes,
    print_sentence,
    print_table,
    token_cell,
    words,
)
from normprobe.runs.run_folder import RunStore

_MOST_RANKS = 10


def show(run: RunStore, console: Console) -> None:
    """Print the tables and their loudest rows, beside those of a base where there is one."""
    embeddings, tokens = run.table("embeddings"), run.table("tokens")
    shift = run.rows_of("shift")
    # Beside a base, its loudest rows stand in the place of the quietest of the model.
    print_embeddings(embeddings, tokens if shift is None else tokens.iloc[:0], console)
    print_sentence(embeddings_verdict(embeddings), console)
    if shift is not None:
        print_shift(shift, console)
        print_sentence(shift_verdict(embeddings, shift), console)


def print_embeddings(embeddings: pd.DataFrame, tokens: pd.DataFrame, console: Console) -> None:
    """Print ``embeddings.csv``, then the rows with the largest and smallest norms."""
    table = new_table("L2 norm of embedding rows")
    for header in ("table", "d", "rows", "mean", "std", "min", "median", "max"):
        add_column(table, header, left=header == "table")
    for name, rows in embeddings.groupby("table", sort=False):
        title = Text(f"{name} table", style="bold")
        table.add_row(title, Text(count(float(rows["hidden_size"].iloc[0]))))
        for _, row in rows.iterrows():
            columns = ("norm_mean", "norm_std", "norm_min", "norm_q50", "norm_max")
            table.add_row(
                Text(f"  {words(str(row['rows']))}"),
                Text(),
                Text(count(float(row["count"]))),
                *(Text(significant(float(row[column]))) for column in columns),
                style=GROUP_STYLES.get(str(name)),
            )
    print_table(table, console)
    print_notes(console, "d: hidden size. std: over rows.")
    for name, rows in tokens.groupby("table", sort=False):
        _ends_table(f"{name} table", rows, console)


def _ends_table(name: str, tokens: pd.DataFrame, console: Console) -> None:
    ends = {
        end: tokens[tokens["end"] == end].sort_values("rank").head(_MOST_RANKS)
        for end in ("top", "bottom")
    }
    table = new_table(f"Loudest and quietest rows of the {name}")
    add_column(table, "rank")
    for end in ("loudest", "quietest"):
        add_column(table, end, left=True)
        add_column(table, "id")
        add_column(table, "norm")
    for place in range(max(map(len, ends.values()))):
        cells = [Text(str(place + 1))]
        for rows in ends.values():
            if place >= len(rows):
                cells += [Text(MISSING)] * 3
                continue
            row = rows.iloc[place]
            cells += [
                token_cell(row["token"], special=bool(row["special"])),
                Text(str(row["token_id"])),
                Text(significant(float(row["norm"]))),
            ]
        table.add_row(*cells)
    print_table(table, console)
    most = int(tokens.groupby("end").size().max())
    print_notes(
        console,
        f"* special token. {SPACE} a space.",
        f"{_MOST_RANKS} of {most} ranks shown; tokens.csv has all." if most > _MOST_RANKS else "",
    )
