"""How a run of ``compare`` is shown: sentences, figures, on a terminal and on the page."""

from dataclasses import replace
from functools import partial

import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure
from rich.console import Console

from normprobe.measurements import compared_by, measurement
from normprobe.report.dots import Dots, draw_dots
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given
from normprobe.report.page.blocks import printed
from normprobe.report.ranked import (
    first_screen,
    print_ranked,
    ranking_dots,
    series_colors,
    with_brackets,
)
from normprobe.report.ranking import ranking_sentences, runs_side_by_side
from normprobe.report.readable import ReadableTable, readable_table
from normprobe.report.sentences import CORRELATION, correlation_finding
from normprobe.report.verdict import Finding, Verdict, verdict_of
from normprobe.runs.run_folder import RunStore

# --- in words ------------------------------------------------------------------------------------


def verdict(run: RunStore) -> Verdict:
    """Who has the largest and the smallest disparity, and whether inertia goes with it."""
    headline, findings, closing = ranking_sentences(run.table("ranking"))
    correlation = run.rows_of(CORRELATION)
    if correlation is not None:
        findings.append(correlation_finding(correlation, "runs"))
    alike = run.record.get("alike")  # weights, prompts and pictures; none: nobody knows
    if isinstance(alike, list) and alike:
        findings.append(Finding("alike", f"Measured: {'; '.join(map(str, alike))}."))
    return verdict_of(headline, findings, closing)


# --- drawn ---------------------------------------------------------------------------------------


def drawings(run: RunStore) -> list[Drawing]:
    """The figures of a run of ``compare``."""
    command = str(run.record["compared"])
    found = [*compared_by(command).drawings(run.table("compare"))]
    ranked = run.rows_of("ranking")
    if ranked is None or compared_dots(command, ranked, run.table("compare")) is None:
        return found
    return [*found, Drawing("ranking", ("ranking", "compare"), partial(_draw, command))]


def compared_dots(command: str, ranking: pd.DataFrame, compare: pd.DataFrame) -> Dots | None:
    """The ranking as dots, each in the colour that its run has in other figures."""
    compared = compared_by(command)
    column = next(iter(compared.COLUMNS.values()))
    return ranking_dots(ranking, column, compared.RANKED, series_colors(compare))


def _draw(
    command: str, title: str, ranking: pd.DataFrame, compare: pd.DataFrame, ax: Given = None
) -> Figure:
    dots = compared_dots(command, ranking, compare)
    assert dots is not None  # or it is no figure of the run
    return draw_dots(title, dots, ax)


# --- on a terminal, and on the page --------------------------------------------------------------


def show(run: RunStore, console: Console) -> None:
    """Print the ranking."""
    runs, command = runs_side_by_side(run.table("ranking")), str(run.record["compared"])
    compared = compared_by(command)
    title = f"{len(runs)} runs of {command}"
    print_ranked(title, runs, compared.COLUMNS, compared.NOTES, console)


def readable(name: str, run: RunStore) -> ReadableTable | None:
    """The ranking with its intervals beside its numbers; other tables as they are."""
    return with_brackets(runs_side_by_side(run.table(name))) if name == "ranking" else None


def lead(run: RunStore) -> Markup:
    """The ranking, and what the compared measurement lays over each other."""
    ranking, compare = run.rows_of("ranking"), run.rows_of("compare")
    if ranking is None or compare is None:
        return Markup()
    command = str(run.record["compared"])
    own = getattr(compared_by(command), "lead", lambda _: Markup())
    return first_screen(compared_dots(command, ranking, compare), own(compare))


def section(run: RunStore) -> list[Markup]:
    """The ranking, then the tables as the compared measurement shows them."""
    compare, compared = run.table("compare"), measurement(str(run.record["compared"]))
    own = getattr(compared.compared, "section", None)
    beside = readable_table(compare, compared.main_quantities(compared.main_table, compare))
    return [
        lead(run),
        *printed(replace(with_brackets(runs_side_by_side(run.table("ranking"))), title="Ranking")),
        *(own(compare) if own else printed(replace(beside, title="Side by side"))),
    ]
