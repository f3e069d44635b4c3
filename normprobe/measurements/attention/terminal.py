"""What a terminal shows of a run of ``attention``."""

import pandas as pd
from rich.console import Console
from rich.text import Text

from normprobe.measurements.attention.words import attention_verdict
from normprobe.report.readable import significant
from normprobe.report.terminal import (
    add_column,
    new_table,
    print_notes,
    print_sentence,
    print_table,
    selected_layers,
)
from normprobe.runs.run_folder import RunStore


def show(run: RunStore, console: Console) -> None:
    """Print the attention to the image layer by layer, and what it says."""
    attention = run.table("attention")
    print_attention(attention, console)
    if run.has_table("images"):
        print_images(run.table("images"), console)
    print_sentence(attention_verdict(attention), console)


def print_images(images: pd.DataFrame, console: Console) -> None:
    """Print which part of the attention of all text each image draws."""
    rows = images[images["query"] == images["query"].iloc[0]]
    shares = rows.pivot(index="layer", columns="image", values="share_mean")
    table = new_table("Share of each image")
    for header in ("layer", *(f"image {number}" for number in shares.columns)):
        add_column(table, header)
    for layer in selected_layers([int(layer) for layer in shares.index]):
        cells = (Text(significant(float(share))) for share in shares.loc[layer])
        table.add_row(Text(str(layer)), *cells)
    print_table(table, console)


def print_attention(attention: pd.DataFrame, console: Console) -> None:
    """Print ``attention.csv``: how much, how widely and how well text attends to the image."""
    columns = ["share_mean", "share_std", "even_share_mean", "entropy_mean"]
    columns += ["signal_to_noise", "score_gap"]
    headers = ("share", "std", "even", "entropy", "signal/noise", "score gap")
    for query, rows in attention.groupby("query", sort=False):
        tokens = int(rows["tokens"].iloc[0])
        table = new_table(f"Attention to the image from {query} ({tokens} tokens)")
        for header in ("layer", *headers):
            add_column(table, header)
        shown = selected_layers([int(layer) for layer in rows["layer"]])
        for _, row in rows[rows["layer"].isin(shown)].iterrows():
            cells = (Text(significant(float(row[column]))) for column in columns)
            table.add_row(Text(str(row["layer"])), *cells)
        print_table(table, console)
    target = attention["signal_to_noise"].notna().any()
    print_notes(
        console,
        "share: of a token's attention, what falls on visual tokens; mean and std over",
        "heads and tokens. even: the share if spread evenly over all visible tokens.",
        "entropy: over the visual tokens, 1: even, 0: on one token.",
        "signal/noise: attention to a visual token inside the box / outside." if target else "",
        "score gap: its score before the softmax, inside - outside (Eq. 21)." if target else "",
        "" if attention["heads"].gt(0).all() else "- a layer without softmax attention to them.",
    )
