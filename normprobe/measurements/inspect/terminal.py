"""What a terminal shows of a model: its parts, its weight files, and the types that are known."""

from collections.abc import Mapping

import pandas as pd
from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from normprobe.report.terminal import (
    add_column,
    new_table,
    print_facts,
    print_notes,
    print_table,
    words,
)


def print_parts(parts: pd.DataFrame, facts: Mapping[str, object], console: Console) -> None:
    """Print what ``inspect`` sees in a model."""
    print_facts(facts, console)
    table = new_table("Parts")
    for header in ("part", "name in the model", "size", "parameters"):
        add_column(table, header, left=header in ("part", "name in the model"))
    for _, row in parts.iterrows():
        table.add_row(
            Text(words(str(row["part"]))),
            Text(str(row["name"])),
            Text(str(row["size"])),
            Text(f"{row['parameters']:,}"),
        )
    print_table(table, console)


def print_weights(weights: pd.DataFrame, console: Console) -> None:
    """Print what the weight files hold of each part, and what each command reads."""
    whole = len(str(weights["files"].iloc[-1]).split())
    table = new_table("Weights")
    for header in ("", "tensors of", "parameters", "bytes", "stored as", "files"):
        add_column(table, header, left=header in ("", "tensors of", "stored as"))
    previous = None
    for _, row in weights.iterrows():
        kind = "needed by" if row["kind"] == "command" else row["kind"]
        known = pd.notna(row.get("bytes"))
        table.add_row(
            Text(kind if kind != previous and row["what"] != kind else ""),
            Text(words(str(row["what"]))),
            Text(f"{row['parameters']:,.0f}" if known else "all"),
            Text(decimal(int(row["bytes"])) if known else "all"),
            Text(str(row["dtype"]) if known else ""),
            Text(f"{len(str(row['files']).split())} of {whole}"),
        )
        previous = kind
    print_table(table, console, keys=2)


def print_models(models: pd.DataFrame, families: Mapping[str, str], console: Console) -> None:
    """Print ``supported_models.csv``."""
    table = new_table(f"{len(models)} model types")
    for header in ("type", "family", "norms", "found by"):
        add_column(table, header, left=True)
    table.add_column("notes", overflow="fold")
    for _, row in models.iterrows():
        columns = ("model_type", "family", "norm_placement", "found_by", "notes")
        table.add_row(*(Text(str(row[column])) for column in columns))
    print_table(table, console)
    print_notes(console, *(f"{name}: {meaning}." for name, meaning in families.items()))
