"""Runs or models in order: ranks with intervals, what they say, and the dots that show them.

A table of them has a row each: ``run``, its name, and numbers with their intervals.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import to_hex
from rich.console import Console
from rich.text import Text

from normprobe.errors import visible
from normprobe.quantities import INTERVAL
from normprobe.report.dots import Dot, Dots, on_page
from normprobe.report.figures.style import GROUP_LOOKS, SERIES_COLORS, shortened
from normprobe.report.page.blocks import dots, first_sentence, note, sentence
from normprobe.report.page.markup import Markup
from normprobe.report.ratio_words import (
    LOUD,
    Estimate,
    Ratio,
    brackets,
    factor,
    hold_inverses,
    ratio_in_words,
)
from normprobe.report.readable import MISSING, ReadableTable, of_one_size, significant
from normprobe.report.terminal import add_column, new_table, print_notes, print_table
from normprobe.schema import OTHER_MEDIA, VISUAL
from normprobe.statistics.bootstrap import LEVEL

AnyEstimate = TypeVar("AnyEstimate", bound=Estimate)

#: Visual over text tokens at the decoder input; of models whose visual tokens never enter it, those
#: that text attends to over text tokens: a number of another kind, in no rank of the others.
DISPARITY, ATTENDED = "disparity_input", "attended_ratio"
_STAR = "* of visual states that text attends to; not ranked with the others."
_NAME = 28  # characters of a name on a terminal


def ranking(
    measures: Sequence[Mapping[Any, Any]],
    labels: Sequence[str],
    steps: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Runs by falling disparity, those of a training by step.

    The first measure is a ratio and ranks by how far it is from 1, whichever way. A rank is 1 and
    the number of runs with a larger number. Its interval says which ranks the intervals of the
    numbers leave open: from 1 and the number of runs that lie wholly beyond, to the number of runs
    that do not lie wholly behind. Without intervals the numbers themselves decide.
    """
    table = pd.DataFrame(measures)
    first = str(table.columns[0])
    table.insert(0, "run", list(labels))
    if ATTENDED in table and table[first].isna().all():  # they have that kind alone
        first = ATTENDED
    disparity = {run: ratio.size for run, ratio in numbers_of(table, first, Ratio).items()}
    order = pd.Series([disparity[run].value for run in labels])
    if steps is not None:
        table.insert(1, "step", list(steps))
        order = pd.Series([-float(step) for step in steps])
    ranks = _ranks("rank", disparity)
    if "inertia_gap" in table:
        ranks |= _ranks("inertia_rank", numbers_of(table, "inertia_gap", Estimate))
    table = pd.concat([pd.DataFrame(ranks, dtype="Int64"), table], axis=1)
    places = order.sort_values(ascending=False, kind="stable", na_position="last").index
    return table.loc[places].reset_index(drop=True)


def numbers_of(
    ranking: pd.DataFrame, column: str, kind: type[AnyEstimate]
) -> dict[str, AnyEstimate]:
    """A measure by run, with its interval, as far as it has one."""
    columns = [column, f"{column}_ci_low", f"{column}_ci_high"]
    numbers = ranking.reindex(columns=columns).astype(float).itertuples(index=False)
    return {str(run): kind(*row) for run, row in zip(ranking["run"], numbers, strict=True)}


def told_apart(numbers: Mapping[str, AnyEstimate]) -> dict[str, AnyEstimate]:
    """With intervals that overlap for all pairs of equal runs at once, in 95 % of comparisons.

    The intervals of two equal numbers overlap far more often than in 95 %, those of many pairs do
    not: they are widened from where Bonferroni over the pairs asks for it.
    """
    pairs = max(1, len(numbers) * (len(numbers) - 1) // 2)
    return {
        run: number.widened(max(1.0, wider_for(pairs) / math.sqrt(2)))
        for run, number in numbers.items()
    }


def told_from_zero(numbers: Mapping[str, Estimate]) -> dict[str, int | None]:
    """``Estimate.sign`` of each, by intervals that hold for all at once; without one, its own."""
    return {
        run: number.widened(wider_for(len(numbers))).sign
        if number.has_interval
        else (number.value > 0) - (number.value < 0)
        for run, number in numbers.items()
    }


def wider_for(comparisons: int) -> float:
    """How much wider an interval is that holds for so many comparisons together (Bonferroni)."""
    quantile = NormalDist().inv_cdf
    return quantile(1 - (1 - LEVEL) / (2 * comparisons)) / quantile((1 + LEVEL) / 2)


def _ranks(name: str, numbers: Mapping[str, Estimate]) -> dict[str, list[int | None]]:
    """The ranks of some numbers and their intervals, by column."""
    numbers = told_apart(numbers)
    held = [number for number in numbers.values() if not math.isnan(number.value)]
    ranks: dict[str, list[int | None]] = {name: [], f"{name}_low": [], f"{name}_high": []}
    for own in numbers.values():
        larger = sum(other.value > own.value for other in held)
        beyond = sum(other.lies_beyond(own) for other in held)
        not_behind = sum(not own.lies_beyond(other) for other in held)
        known = not math.isnan(own.value)
        for column, rank in zip(ranks, (1 + larger, 1 + beyond, not_behind), strict=True):
            ranks[column].append(rank if known else None)
    return ranks


# --- in words ------------------------------------------------------------------------------------

_NAMED = 4  # runs in a list


def ranking_verdict(table: pd.DataFrame, what: str = "runs") -> str:
    """How many are louder or quieter; then which by most and by least, and where inertia is.

    Runs whose intervals overlap are named together: the numbers do not tell them apart.
    """
    if DISPARITY not in table:
        return ""
    ratios, attended = _usable(table, DISPARITY), _usable(table, ATTENDED)
    sentences = []
    if len(ratios) < len(table) or (len(table) > 2 and "step" not in table):
        sentences.append(_counts(table, ratios, attended, what))
    elif len(table) == 1:
        (ratio,) = ratios.values()
        sentences.append(f"Visual tokens enter the decoder {_loudness(ratio)}")
    if len(ratios) > 1:
        if "step" in table:
            steps = dict(zip(table["run"], table["step"], strict=True))
            sentences.insert(0, _first_and_last(ratios, steps))
        sentences.append(_extremes(ratios, what))
        if "inertia_gap" in table:
            sentences += _inertia(numbers_of(table, "inertia_gap", Estimate), what)
    told = [*ratios.values(), *attended.values()]
    closing = [brackets(told)] if told and sentences else []
    return " ".join([*(f"{sentence}." for sentence in sentences), *closing])


def _usable(table: pd.DataFrame, column: str) -> dict[str, Ratio]:
    found = numbers_of(table, column, Ratio)  # not a number where the table has no such column
    return {run: ratio for run, ratio in found.items() if ratio.usable}


def _counts(
    table: pd.DataFrame, ratios: Mapping[str, Ratio], attended: Mapping[str, Ratio], what: str
) -> str:
    """What becomes of each of them: the numbers add up."""
    told = []
    for way in (1, -1, 0, None):
        if alike := [ratio for ratio in ratios.values() if ratio.state == way]:
            number = "all" if len(alike) == len(table) else len(alike)
            beside = hold_inverses(ratios.values())
            told.append(f"{ratio_in_words(alike, LOUD, beside_inverses=beside)} in {number}")
    parts = []
    if told:
        own = ", each by its own interval" * any(r.has_interval for r in ratios.values())
        parts.append(f"visual tokens enter the decoder {_and(told)}{own}")
    if attended:
        loud = _each_loudness(attended)
        told_of = f"{len(loud)}: {listed([*loud], loud)}"
        parts.append(f"text attends to visual states beside the sequence in {told_of}")
    left = [str(run) for run in table["run"] if run not in ratios and run not in attended]
    failed = set(table.loc[table["status"] == "failed", "run"]) if "status" in table else set()
    for words, names in (
        ("failed", [run for run in left if run in failed]),
        ("without a ratio", [run for run in left if run not in failed]),
    ):
        if names:
            parts.append(f"{len(names)} {words} ({listed(names)})")
    return f"Of {len(table)} {what[: len(what) - (len(table) == 1)]}, {'; '.join(parts)}"


def _first_and_last(ratios: Mapping[str, Ratio], steps: Mapping[str, int]) -> str:
    """From the first to the last step of a training."""
    first, last = (of(ratios, key=steps.__getitem__) for of in (min, max))
    ends = {run: ratios[run] for run in (first, last)}
    before, after = told_apart(ends).values()
    loud = _each_loudness(ends)
    apart = before.lies_beyond(after) or after.lies_beyond(before)
    return (
        f"At the decoder input visual tokens go from {loud[first]} at step "
        f"{steps[first]} to {loud[last]} at step {steps[last]}"
        f"{'' if apart else ', not told apart'}"
    )


def _extremes(ratios: Mapping[str, Ratio], what: str) -> str:
    sizes = {run: ratio.size for run, ratio in ratios.items()}
    largest = _foremost(sizes)
    smallest = _foremost({run: size.inverse for run, size in sizes.items()})
    told = _each_loudness(ratios)
    disparity = "The norm disparity at the decoder input"
    if len(largest) == len(smallest) == len(ratios):
        return f"{disparity} does not tell the {what} apart: {listed(largest, told)}"
    return (
        f"{disparity} is largest in {listed(largest, told)} and smallest in "
        f"{listed(smallest, told)}"
    )


def _inertia(gaps: Mapping[str, Estimate], what: str) -> list[str]:
    """Where text tokens turn ahead of visual ones by most, and where they fall behind."""
    gaps = {run: gap for run, gap in gaps.items() if gap.value == gap.value}
    told = {run: _radians(gap) for run, gap in gaps.items()}
    ways = told_from_zero(gaps)
    ahead = {run: gap for run, gap in gaps.items() if ways[run] == 1}
    behind = [run for run in gaps if ways[run] == -1]
    sentences = []
    if ahead:
        most = listed(_foremost(ahead), told)
        sentences.append(f"Text tokens turn ahead of visual ones by most in {most}")
    if behind:
        sentences.append(f"Visual tokens turn ahead of text in {listed(behind, told)}")
    if gaps and not sentences:
        one = what[:-1]
        sentences.append(f"In no {one} is the angle of text and of visual tokens told apart")
    return sentences


def _foremost(numbers: Mapping[str, Estimate]) -> list[str]:
    """The runs that no other lies beyond, by falling number."""
    runs = sorted(numbers, key=lambda run: -numbers[run].value)
    wide = told_apart(numbers)
    return [run for run in runs if not any(o.lies_beyond(wide[run]) for o in wide.values())]


def listed(runs: Sequence[str], told: Mapping[str, str] | None = None) -> str:
    """Some of them by name, each with what is told of it."""
    names = [f"{run} ({told[run]})" if told else run for run in runs[:_NAMED]]
    return _and([*names, *([f"{len(runs) - _NAMED} more"] if len(runs) > _NAMED else [])])


def _and(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if names[1:] else names[0]


def _each_loudness(ratios: Mapping[str, Ratio]) -> dict[str, str]:
    """What is told of runs in one sentence."""
    beside = hold_inverses(ratios.values())
    return {run: _loudness(ratio, beside_inverses=beside) for run, ratio in ratios.items()}


def _loudness(ratio: Ratio, *, beside_inverses: bool = False) -> str:
    """``82 x [68, 102] louder``; ``about as loud, 1.10 x [0.90, 1.20]``."""
    if ratio.state in (0, None):
        told = LOUD.direct([ratio], beside_inverses=beside_inverses)
        return f"{LOUD.of(ratio.state)}, {told}"
    return ratio_in_words([ratio], LOUD)


def _radians(gap: Estimate) -> str:
    value, *ends = of_one_size([gap.value, *([gap.low, gap.high] if gap.has_interval else [])])
    interval = f" [{', '.join(ends)}]" if ends else ""
    return f"{value}{interval} radians a layer"


# --- to be seen ----------------------------------------------------------------------------------


def rank_in_words(row: "pd.Series[Any]", name: str = "rank") -> str:
    """``2``, or ``2 (1-3)`` where intervals leave it open."""
    if pd.isna(row[name]):
        return MISSING
    rank, low, high = (int(row[column]) for column in (name, f"{name}_low", f"{name}_high"))
    return f"{rank}" if low == high else f"{rank} ({low}-{high})"


def print_ranked(
    title: str, table: pd.DataFrame, columns: Mapping[str, str], notes: Sequence[str], to: Console
) -> None:
    """Print runs in order, with the numbers under these headers; open ranks have a note."""
    key = "model" if "status" in table else "run"
    others = {group: f"disparity_{group}" for group in OTHER_MEDIA}
    columns = {**columns, **{name: column for name, column in others.items() if column in table}}
    headers = ["rank", key, *columns, *(["status"] if "status" in table else [])]
    drawn, stars = new_table(title), False
    for header in headers:
        add_column(drawn, header, left=header in (key, "status"))
    for _, row in table.iterrows():
        cells = [rank_in_words(row), shortened(str(row["run"]), _NAME)]
        for column in columns.values():
            beside = column == DISPARITY and pd.isna(row[column]) and pd.notna(row.get(ATTENDED))
            cells.append(significant(float(row[ATTENDED if beside else column])) + "*" * beside)
            stars |= beside
        drawn.add_row(*map(Text, cells), *([str(row["status"])] if "status" in table else []))
    print_table(drawn, to, keys=2)
    print_notes(to, *notes, _STAR * stars, *_open_ranks(table))


def _open_ranks(table: pd.DataFrame) -> list[str]:
    """What an open rank means, where one is; weights have no intervals, but may be equal."""
    if (table["rank_low"] == table["rank_high"]).fillna(True).all():
        return []
    if any(table[name].notna().any() for name in table if str(name).endswith(INTERVAL[0])):
        return ["1 (1-3): first by its number; 95 % intervals leave ranks 1 to 3 open."]
    return ["1 (1-3): equal numbers share ranks 1 to 3."]


def with_brackets(table: pd.DataFrame) -> ReadableTable:
    """A table with the ends of each rank and interval behind its number, in one cell."""
    ends = {f"{name}{end}" for name in table for end in (*INTERVAL, "_low", "_high")}
    shown = [str(name) for name in table if name not in ends]
    numeric = [pd.api.types.is_numeric_dtype(table[name]) for name in shown]
    rows = [[_cell(row, name) for name in shown] for _, row in table.iterrows()]
    notes = [*(_open_ranks(table) if "rank" in shown else []), "Numbers have 3 significant digits."]
    if any(name + INTERVAL[0] in table for name in shown) and "[" in str(rows)[2:]:
        notes.append("In brackets: 95 % intervals over images.")
    headers = [(visible(name.replace("_", " ")),) for name in shown]
    return ReadableTable(headers, rows, numeric, [" ".join(notes)])


def _cell(row: "pd.Series[Any]", name: str) -> str:
    """``2 (1-3)``; ``0.0732 [0.0711, 0.0753]``."""
    value = row[name]
    if f"{name}_low" in row:
        return rank_in_words(row, name)
    if pd.isna(value):
        return MISSING
    if isinstance(value, str):
        return visible(value)
    ends = [float(row.get(name + end, math.nan)) for end in INTERVAL]
    told = [significant(float(number), 3) for number in (value, *ends)]
    return told[0] if MISSING in told else f"{told[0]} [{told[1]}, {told[2]}]"


def series_colors(table: pd.DataFrame) -> dict[str, str]:
    """A colour a run, the same wherever it is shown; of one training, they follow the step."""
    runs = [str(run) for run in dict.fromkeys(table["run"])]
    if "step" in table:
        steps = colormaps["viridis"](np.linspace(0.9, 0, len(runs)))
        return dict(zip(runs, map(to_hex, steps), strict=True))
    return {run: SERIES_COLORS[place % len(SERIES_COLORS)] for place, run in enumerate(runs)}


def ranking_dots(
    table: pd.DataFrame, column: str, words: str, colors: Mapping[str, str] | None = None
) -> Dots | None:
    """A dot a run in the order of the table, with the ranks left open; None: none has a ratio."""
    kinds = {column: words, ATTENDED: "visual states that text attends to / text, in no rank"}
    if not _usable(table, column):
        kinds[ATTENDED] = kinds[ATTENDED].removesuffix(", in no rank")
    after = numbers_of(table, "disparity_last" if column == DISPARITY else "", Ratio)
    marks = {}
    for _, row in table.iterrows():
        if "step" not in table and not pd.isna(row.get("rank")):
            ends = dict.fromkeys(str(int(row[name])) for name in ("rank_low", "rank_high"))
            marks[str(row["run"])] = "-".join(ends)
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
            told=ratio_in_words([ratio], LOUD)
            if ratio.state and name in (DISPARITY, ATTENDED)
            else factor([ratio]),
        )
        for name, kind in kinds.items()
        for run, ratio in _usable(table, name).items()
    ]
    return Dots("Ranking", "ratio", rows, ("1", 1.0, "#767d84")) if rows else None


def first_screen(said: str, ranked: Dots | None, *more: Markup) -> Markup:
    """One sentence over all, the ranking, what else is drawn of all, and what else is said."""
    first = first_sentence(said)
    parts = [sentence(first)]
    if ranked:
        known = {
            "thick: 95 % intervals over images": any(d.interval[0] > 0 for d in ranked.rows),
            "hollow: after the last layer": any(d.after > 0 for d in ranked.rows),
            "in front: ranks, as far as intervals tell them": any(d.mark for d in ranked.rows),
        }
        legend = "; ".join(words for words, there in known.items() if there)
        parts += [dots(on_page(ranked)), note(f"{legend[:1].upper()}{legend[1:]}.")]
    return Markup().join([*parts, *more, sentence(said[len(first) :].strip())])
