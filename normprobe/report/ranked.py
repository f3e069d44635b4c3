"""Runs or models in order, to be seen: printed, in a table, as dots, and as the first screen."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib import colormaps
from matplotlib.colors import to_hex
from rich.console import Console
from rich.text import Text

from normprobe.errors import visible
from normprobe.report.dots import Dot, Dots, on_page
from normprobe.report.figures.style import GROUP_LOOKS, SERIES_COLORS, shortened
from normprobe.report.page.blocks import dots, note
from normprobe.report.ranking import (
    ATTENDED,
    DISPARITY,
    RANKS,
    Rank,
    numbers_of,
    runs_of,
    usable_ratios,
)
from normprobe.report.ratio_words import (
    Estimate,
    Ratio,
    factor,
    ratio_in_words,
)
from normprobe.report.readable import ReadableTable, significant
from normprobe.report.terminal import add_column, new_table, print_notes, print_table
from normprobe.schema import OTHER_MEDIA, VISUAL

_STAR = "* of visual states that text attends to; not ranked with the others."
_NAME = 28  # characters of a name on a terminal


def print_ranked(
    title: str, runs: pd.DataFrame, columns: Mapping[str, str], notes: Sequence[str], to: Console
) -> None:
    """Print ``runs_side_by_side`` with the numbers under these headers; open ranks have a note."""
    key = "model" if "status" in runs else "run"
    others = {group: f"disparity_{group}" for group in OTHER_MEDIA}
    columns = {**columns, **{name: column for name, column in others.items() if column in runs}}
    drawn, stars = new_table(title), False
    for header in ("rank", key, *columns, *(["status"] if "status" in runs else [])):
        add_column(drawn, header, left=header in (key, "status"))
    for _, row in runs.iterrows():
        cells = [str(row["rank"]), shortened(row[key], _NAME)]
        attended = row.get(ATTENDED, Estimate(math.nan))
        for column in columns.values():
            beside = column == DISPARITY and math.isnan(row[column].value)
            beside = beside and not math.isnan(attended.value)
            cells.append(significant((attended if beside else row[column]).value) + "*" * beside)
            stars |= beside
        drawn.add_row(*map(Text, cells), *([row["status"]] if "status" in runs else []))
    print_table(drawn, to, keys=2)
    print_notes(to, *notes, _STAR * stars, *_open_ranks(runs))


def _open_ranks(runs: pd.DataFrame) -> list[str]:
    """What an open rank means, where one is; weights have no intervals, but may be equal."""
    open_ = [rank for rank in runs.get("rank", ()) if rank.low < rank.high]
    if not open_:
        return []
    rank = open_[0]  # as it stands in the table: an example of another table would read as a result
    if _have_intervals(runs):
        return [f"rank {rank}: {rank.value:.0f} by its number, {rank.places} by 95 % intervals."]
    return [f"rank {rank}: equal numbers share ranks {rank.places}."]


def _have_intervals(cells: pd.DataFrame) -> bool:
    numbers = cells.drop(columns=[*RANKS], errors="ignore").to_numpy().ravel()
    return any(isinstance(number, Estimate) and number.has_interval for number in numbers)


def with_brackets(cells: pd.DataFrame) -> ReadableTable:
    """A table of texts and estimates, the ends of each interval behind its number, in one cell."""
    rows = [[_cell(cell) for cell in row] for row in cells.itertuples(index=False, name=None)]
    numeric = [not isinstance(cell, str) for cell in cells.iloc[0]]
    notes = [*_open_ranks(cells), "Numbers have 3 significant digits."]
    if _have_intervals(cells):
        notes.append("[ ]: 95 % interval (bootstrap over images).")
    headers = [(visible(str(name).replace("_", " ")),) for name in cells]
    return ReadableTable(headers, rows, numeric, [" ".join(notes)])


def _cell(cell: object) -> str:
    """``2 (1-3)``; ``0.0732 [0.0711, 0.0753]``; what is no estimate as it is."""
    if not isinstance(cell, Estimate) or isinstance(cell, Rank):
        return visible(str(cell))
    value, low, high = (significant(number, 3) for number in astuple(cell))
    return f"{value} [{low}, {high}]" if cell.has_interval else value


def series_colors(table: pd.DataFrame) -> dict[str, str]:
    """A colour a run, the same wherever it is shown; of one training, they follow the step."""
    runs = runs_of(table)
    if "step" in table:
        steps = colormaps["viridis"](np.linspace(0.9, 0, len(runs)))
        return dict(zip(runs, map(to_hex, steps), strict=True))
    return {run: SERIES_COLORS[place % len(SERIES_COLORS)] for place, run in enumerate(runs)}


def ranking_dots(
    table: pd.DataFrame, quantity: str, words: str, colors: Mapping[str, str] | None = None
) -> Dots | None:
    """A dot a run in the order of the table, with the ranks left open; None: none has a ratio."""
    kinds = {quantity: words, ATTENDED: "visual states that text attends to / text, in no rank"}
    if not usable_ratios(table, quantity):
        kinds[ATTENDED] = kinds[ATTENDED].removesuffix(", in no rank")
    after = numbers_of(table, "disparity_last" if quantity == DISPARITY else "", Ratio)
    ranks = {} if "step" in table else numbers_of(table, "rank", Rank)
    marks = {run: rank.places for run, rank in ranks.items() if rank.has_interval}
    look = GROUP_LOOKS[VISUAL]
    rows = [
        Dot(
            stage=kind,
            name=run,
            mark=marks.get(run, ""),
            look=look._replace(color=(colors or {}).get(run, look.color)),
            value=ratio.value,
            interval=(ratio.low, ratio.high),
            after=after[run].value,
            told=ratio_in_words(ratio)
            if ratio.state and name in (DISPARITY, ATTENDED)
            else factor([ratio]),
        )
        for name, kind in kinds.items()
        for run, ratio in usable_ratios(table, name).items()
    ]
    return Dots("Ranking", "ratio", rows, ("1", 1.0, "#767d84")) if rows else None


def first_screen(ranked: Dots | None, *more: Markup) -> Markup:
    """The ranking, and what else is drawn of all."""
    parts = []
    if ranked:
        known = {
            "thick: 95 % intervals over images": any(d.interval[0] > 0 for d in ranked.rows),
            "hollow: after the last layer": any(d.after > 0 for d in ranked.rows),
            "in front: ranks, as far as intervals tell them": any(d.mark for d in ranked.rows),
        }
        legend = "; ".join(words for words, there in known.items() if there)
        parts = [dots(on_page(ranked)), note(f"{legend[:1].upper()}{legend[1:]}.")]
    return Markup().join([*parts, *more])
