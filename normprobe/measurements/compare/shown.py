"""How a run of ``compare`` is shown: on a terminal, and on the page."""

from dataclasses import replace

import pandas as pd
from rich.console import Console

from normprobe.measurements import measurement
from normprobe.measurements.compare.figures import compared_dots
from normprobe.measurements.compare.words import alike_sentence, verdict
from normprobe.report.page.blocks import heading, printed, sentence
from normprobe.report.page.blocks import shown_table as shown
from normprobe.report.page.markup import Markup
from normprobe.report.ranking import first_screen, print_ranked, with_brackets
from normprobe.report.readable import ReadableTable
from normprobe.report.terminal import print_sentence
from normprobe.runs.run_folder import RunStore


def show(run: RunStore, console: Console) -> None:
    """Print the ranking, and what it says."""
    ranking, command = run.table("ranking"), str(run.record["compared"])
    compared = measurement(command).module("compared")
    title = f"{len(ranking)} runs of {command}"
    print_ranked(title, ranking, compared.COLUMNS, compared.NOTES, console)
    print_sentence(verdict(run), console)
    print_sentence(alike_sentence(run), console)


def readable(name: str, table: pd.DataFrame) -> ReadableTable | None:
    """The ranking with its intervals beside its numbers; other tables as they are."""
    return with_brackets(table) if name == "ranking" else None


def lead(run: RunStore) -> Markup:
    """What it says, the ranking, and what the compared measurement lays over each other."""
    ranking, compare = run.rows_of("ranking"), run.rows_of("compare")
    if ranking is None or compare is None:
        return Markup()
    command = str(run.record["compared"])
    own = getattr(measurement(command).module("compared"), "lead", lambda _: Markup())
    return first_screen(verdict(run), compared_dots(command, ranking, compare), own(compare))


def section(run: RunStore) -> list[Markup]:
    """The ranking, then the tables as the compared measurement shows them."""
    compare = run.table("compare")
    compared = measurement(str(run.record["compared"])).module("compared")
    own = getattr(compared, "section", None)
    return [
        lead(run),
        sentence(alike_sentence(run)),
        *printed(replace(with_brackets(run.table("ranking")), title="Ranking")),
        *(own(compare) if own else [heading("Side by side"), shown(compare)]),
    ]
