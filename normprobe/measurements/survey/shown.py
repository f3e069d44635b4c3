"""How a survey is shown: on a terminal, and on the page."""

from dataclasses import replace
from itertools import chain

import pandas as pd
from rich.console import Console
from rich.text import Text

from normprobe.measurements.survey.figures import dots_of
from normprobe.measurements.survey.measure import FACTS
from normprobe.measurements.survey.printed import printed_of
from normprobe.measurements.survey.printed import readable as printed_table
from normprobe.measurements.survey.words import ranked, reasons, told, verdict
from normprobe.quantities import INTERVAL
from normprobe.report.dots import on_page
from normprobe.report.figures.style import shortened
from normprobe.report.page.blocks import dots, heading, note, printed, sentence, shown_table
from normprobe.report.page.markup import Markup
from normprobe.report.ranking import (
    ATTENDED,
    ATTENDED_NOTE,
    DISPARITY,
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

__all__ = ["readable", "section", "show"]

#: Header and column of each number.
_COLUMNS = {
    "x prompt": DISPARITY,
    "x table": "ratio_to_table",
    "table": "table_norm",
    "last": "disparity_last",
    "inertia gap": "inertia_gap",
}
_OF_LAYERS = (
    "last: x prompt after the last layer; inertia gap: text - visual angle, radians a",
    "layer.",
)
_HOW = "`normprobe show FOLDER --format md` or `tex` prints them."
_LONGEST = 24  # characters of a model's name
#: Columns of the table in print and on the page, as far as any model has them.
_PRINTED = [DISPARITY, ATTENDED, "disparity_middle", "disparity_last", "inertia_gap", "norms_share"]
_PRINTED += ["ratio_to_table", "visual_norm", "text_norm", "table_norm", "status"]


def show(run: RunStore, console: Console) -> None:
    """Print a line a model, why models lack numbers, and what all of them say."""
    survey = run.table("survey")
    models = ranked(survey)
    attended = ATTENDED in models and bool(models[ATTENDED].notna().any())
    shown = {
        header: name
        for header, name in _COLUMNS.items()
        if models[name].notna().any() or (name == DISPARITY and attended)
    }
    table = new_table(f"{len(survey)} model{'s' * (len(survey) != 1)}")
    for header in ("rank", "model", *shown, "status"):
        add_column(table, header, left=header in ("model", "status"))
    for _, row in models.iterrows():
        table.add_row(
            Text(rank_in_words(row)),
            Text(shortened(str(row["run"]), _LONGEST)),
            *(Text(number_in_words(row, name)) for name in shown.values()),
            Text(str(row["status"])),
        )
    print_table(table, console, keys=2)
    print_notes(
        console,
        "x prompt, x table: visual mean norm at the decoder input over that of the",
        "prompts' text and of the text table (table: its mean). survey.csv has intervals.",
        ATTENDED_NOTE * attended,
        *(_OF_LAYERS if "inertia gap" in shown else ()),
        *open_ranks(models),
    )
    for reason in reasons(survey):
        print_sentence(reason, console)
    print_sentence(verdict(run), console)
    if printed := printed_of(run):
        files = ", ".join(f"{name}.csv" for name in printed)
        print_sentence(f"The paper's tables of these models: {files}. {_HOW}", console)


def readable(name: str, table: pd.DataFrame) -> ReadableTable | None:
    """The paper's tables in its form; the models by rank, with intervals, and reasons below."""
    if name != "survey":
        return printed_table(name, table)
    models = ranked(table).rename(columns={"run": "model"})
    known = [name for name in _PRINTED if name in models and models[name].notna().any()]
    ends = [f"{name}{end}" for name in known for end in INTERVAL if f"{name}{end}" in models]
    shown = with_brackets(models[["rank", "rank_low", "rank_high", "model", *known, *ends]])
    return replace(shown, notes=[*shown.notes, *reasons(table)])


def headline(run: RunStore) -> str:
    """One sentence over all."""
    return next(iter(told(run)), "") if run.rows_of("survey") is not None else ""


def lead(run: RunStore) -> Markup:
    """The models by disparity, and what else is said of all."""
    survey = run.rows_of("survey")
    if survey is None:
        return Markup()
    drawn = dots_of(survey)
    ranked_dots = dots(on_page(drawn)) + note(ranking_note(drawn)) if drawn else Markup()
    return ranked_dots + sentence(" ".join(told(run)[1:]))


def section(run: RunStore) -> list[Markup]:
    """What it says, a row a model, why some failed, and what each is and took."""
    survey = run.table("survey")
    table = readable("survey", survey)
    assert table is not None
    return [
        sentence(headline(run)),
        lead(run),
        *printed(replace(table, title="Models")),
        *chain.from_iterable(map(printed, printed_of(run).values())),
        heading("What each model is, and took"),
        shown_table(_facts(survey, run.table("cost"))),
        note("Weights fetched, memory at the peak of its process, and seconds."),
    ]


def _facts(survey: pd.DataFrame, cost: pd.DataFrame) -> pd.DataFrame:
    told = [name for name in (*FACTS, "revision") if name in survey and survey[name].notna().any()]
    took = _in_megabytes(cost).drop(columns="model")
    return pd.concat([survey[["model", *told]], took], axis=1)


def _in_megabytes(cost: pd.DataFrame) -> pd.DataFrame:
    sizes = {"fetched_bytes": "fetched (MB)", "peak_memory": "peak memory (MB)"}
    return cost.assign(**{name: cost[name] / 1e6 for name in sizes}).rename(columns=sizes)
