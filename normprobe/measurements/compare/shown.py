"""How a run of ``compare`` is shown: on a terminal, and on the page."""

from typing import Any

import pandas as pd
from rich.console import Console
from rich.text import Text

from normprobe.measurements import measurement
from normprobe.measurements.compare.words import alike_sentence, verdict
from normprobe.report.page.blocks import heading, sentence
from normprobe.report.page.blocks import shown_table as shown
from normprobe.report.page.markup import Markup
from normprobe.report.readable import MISSING, significant
from normprobe.report.terminal import (
    add_column,
    new_table,
    print_notes,
    print_sentence,
    print_table,
)
from normprobe.runs.run_folder import RunStore


def show(run: RunStore, console: Console) -> None:
    """Print the ranking, and what it says."""
    print_ranking(str(run.record["compared"]), run.table("ranking"), console)
    print_sentence(verdict(run), console)
    print_sentence(alike_sentence(run), console)


def print_ranking(command: str, ranking: pd.DataFrame, console: Console) -> None:
    """Print ``ranking.csv``."""
    compared = measurement(command).module("compared")
    columns, notes = compared.COLUMNS, compared.NOTES
    table = new_table(f"{len(ranking)} runs of {command}")
    for header in ("rank", "run", *columns):
        add_column(table, header, left=header == "run")
    for _, row in ranking.iterrows():
        table.add_row(
            Text(_rank(row)),
            Text(str(row["run"])),
            *(Text(significant(float(row[column]))) for column in columns.values()),
        )
    print_table(table, console, keys=2)
    print_notes(console, *notes, *_open_ranks(ranking))


def _open_ranks(ranking: pd.DataFrame) -> list[str]:
    """What an open rank means, where one is; weights have no intervals, but may be equal."""
    if (ranking["rank_low"] == ranking["rank_high"]).fillna(True).all():
        return []
    if any(ranking[name].notna().any() for name in ranking if str(name).endswith("_ci_low")):
        return ["1 (1-3): first by its number; 95 % intervals leave ranks 1 to 3 open."]
    return ["1 (1-3): equal numbers share ranks 1 to 3."]


def _rank(row: "pd.Series[Any]") -> str:
    """``2``, or ``2 (1-3)`` where intervals leave it open."""
    if pd.isna(row["rank"]):
        return MISSING
    rank, low, high = (int(row[name]) for name in ("rank", "rank_low", "rank_high"))
    return f"{rank}" if low == high else f"{rank} ({low}-{high})"


def section(run: RunStore) -> list[Markup]:
    """The ranking, then the tables as the compared measurement shows them."""
    compare = run.table("compare")
    compared = measurement(str(run.record["compared"])).module("compared")
    own = getattr(compared, "section", None)
    beside = own(compare) if own else [heading("Side by side"), shown(compare)]
    ranking = [sentence(verdict(run)), heading("Ranking"), shown(run.table("ranking"))]
    told = alike_sentence(run)
    return [*ranking, *beside, *([sentence(told)] if told else [])]
