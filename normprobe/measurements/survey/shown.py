"""How a survey is shown: on a terminal, and on the page."""

from dataclasses import replace
from itertools import chain

import pandas as pd
from rich.console import Console

from normprobe.errors import number_of
from normprobe.measurements.survey.figures import survey_dots
from normprobe.measurements.survey.measure import FACTS
from normprobe.measurements.survey.printed import printed_of, printed_table
from normprobe.measurements.survey.words import ranked, reasons, verdict
from normprobe.quantities import INTERVAL
from normprobe.report.page.blocks import heading, note, printed, shown_table
from normprobe.report.page.markup import Markup
from normprobe.report.ranking import ATTENDED, DISPARITY, first_screen, print_ranked, with_brackets
from normprobe.report.readable import ReadableTable
from normprobe.report.terminal import print_sentence
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
_NOTES = (
    "x prompt, x table: visual mean norm at the decoder input over that of the",
    "prompts' text and of the text table (table: its mean). survey.csv has intervals.",
)
_HOW = "`normprobe show FOLDER --format md` or `tex` prints them."
#: Columns of the table in print and on the page, as far as any model has them.
_PRINTED = [DISPARITY, ATTENDED, "disparity_middle", "disparity_last", "inertia_gap", "norms_share"]
_PRINTED += ["ratio_to_table", "visual_norm", "text_norm", "table_norm", "status"]


def show(run: RunStore, console: Console) -> None:
    """Print a line a model, why models lack numbers, and what all of them say."""
    survey = run.table("survey")
    shown = {header: name for header, name in _COLUMNS.items() if survey[name].notna().any()}
    title = number_of(len(survey), "model")
    notes = [*_NOTES, *(_OF_LAYERS if "inertia gap" in shown else ())]
    print_ranked(title, ranked(survey), shown, notes, console)
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


def lead(run: RunStore) -> Markup:
    """What it says, and the models by disparity."""
    survey = run.rows_of("survey")
    return Markup() if survey is None else first_screen(verdict(run), survey_dots(survey))


def section(run: RunStore) -> list[Markup]:
    """What it says, a row a model, why some failed, and what each is and took."""
    survey = run.table("survey")
    table = readable("survey", survey)
    assert table is not None
    return [
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
