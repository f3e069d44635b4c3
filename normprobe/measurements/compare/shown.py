"""How a run of ``compare`` is shown: on a terminal, and on the page."""

from dataclasses import replace

import pandas as pd
from rich.console import Console
from rich.text import Text

from normprobe.measurements import measurement
from normprobe.measurements.compare.figures import dots_of
from normprobe.measurements.compare.words import alike_sentence, told, verdict
from normprobe.report.dots import on_page
from normprobe.report.page.blocks import dots, heading, note, printed, sentence
from normprobe.report.page.blocks import shown_table as shown
from normprobe.report.page.markup import Markup
from normprobe.report.ranking import (
    ATTENDED,
    ATTENDED_NOTE,
    number_in_words,
    open_ranks,
    rank_in_words,
    ranking_note,
    with_brackets,
)
from normprobe.report.readable import ReadableTable
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
    columns, notes = compared.COLUMNS, [*compared.NOTES]
    if ATTENDED in ranking:
        notes.append(ATTENDED_NOTE)
    table = new_table(f"{len(ranking)} runs of {command}")
    for header in ("rank", "run", *columns):
        add_column(table, header, left=header == "run")
    for _, row in ranking.iterrows():
        table.add_row(
            Text(rank_in_words(row)),
            Text(str(row["run"])),
            *(Text(number_in_words(row, column)) for column in columns.values()),
        )
    print_table(table, console, keys=2)
    print_notes(console, *notes, *open_ranks(ranking))


def readable(name: str, table: pd.DataFrame) -> ReadableTable | None:
    """The ranking with its intervals beside its numbers; other tables as they are."""
    return with_brackets(table) if name == "ranking" else None


# --- on the page ---------------------------------------------------------------------------------


def headline(run: RunStore) -> str:
    """One sentence over all."""
    return next(iter(told(run)), "") if run.rows_of("compare") is not None else ""


def lead(run: RunStore) -> Markup:
    """The ranking as dots, what the compared measurement lays over each other, and the rest."""
    ranking, compare = run.rows_of("ranking"), run.rows_of("compare")
    if ranking is None or compare is None:
        return Markup()
    command = str(run.record["compared"])
    drawn = dots_of(command, ranking, compare)
    ranked = dots(on_page(drawn)) + note(ranking_note(drawn)) if drawn else Markup()
    own = getattr(measurement(command).module("compared"), "lead", None)
    return Markup().join([ranked, own(compare) if own else "", sentence(" ".join(told(run)[1:]))])


def section(run: RunStore) -> list[Markup]:
    """The ranking, then the tables as the compared measurement shows them."""
    compare = run.table("compare")
    compared = measurement(str(run.record["compared"])).module("compared")
    own = getattr(compared, "section", None)
    return [
        sentence(headline(run)),
        lead(run),
        sentence(alike_sentence(run)),
        *printed(replace(with_brackets(run.table("ranking")), title="Ranking")),
        *(own(compare) if own else [heading("Side by side"), shown(compare)]),
    ]
