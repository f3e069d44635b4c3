"""How a survey is shown: on a terminal, and on the page."""

from itertools import chain

import pandas as pd
from rich.console import Console
from rich.text import Text

from normprobe.measurements.survey.printed import printed_of, readable
from normprobe.measurements.survey.words import verdict
from normprobe.quantities import INTERVAL
from normprobe.report.page.blocks import heading, note, printed, sentence
from normprobe.report.page.blocks import shown_table as shown_table
from normprobe.report.page.markup import Markup
from normprobe.report.readable import significant
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
    "x prompt": "disparity_input",
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


def show(run: RunStore, console: Console) -> None:
    """Print a line a model, why models lack numbers, and what all of them say."""
    survey = run.table("survey")
    shown = {header: name for header, name in _COLUMNS.items() if survey[name].notna().any()}
    table = new_table(f"{len(survey)} model{'s' * (len(survey) != 1)}")
    for header in ("model", *shown, "status"):
        add_column(table, header, left=header in ("model", "status"))
    for _, row in survey.iterrows():
        table.add_row(
            Text(_short(str(row["model"]))),
            *(Text(significant(float(row[name]))) for name in shown.values()),
            Text(str(row["status"])),
        )
    print_table(table, console)
    print_notes(
        console,
        "x prompt, x table: visual mean norm at the decoder input over that of the",
        "prompts' text and of the text table (table: its mean). survey.csv has intervals.",
        *(_OF_LAYERS if "inertia gap" in shown else ()),
    )
    for _, row in survey[survey["reason"].notna()].iterrows():
        print_sentence(f"{row['model']}: {row['reason']}", console)
    print_sentence(verdict(run), console)
    if printed := printed_of(run):
        files = ", ".join(f"{name}.csv" for name in printed)
        print_sentence(f"The paper's tables of these models: {files}. {_HOW}", console)


def _short(name: str) -> str:
    """The end of a name tells more than the organisation."""
    last = name.rstrip("/").rpartition("/")[2]
    return last if len(last) <= _LONGEST else f"{last[: _LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"


def section(run: RunStore) -> list[Markup]:
    """What it says, a row a model without the ends of intervals, and what each model took."""
    survey = run.table("survey")
    return [
        sentence(verdict(run)),
        heading("Models"),
        shown_table(survey[[name for name in survey if not str(name).endswith(INTERVAL)]]),
        note("survey.csv holds the 95 % interval of each number."),
        *chain.from_iterable(map(printed, printed_of(run).values())),
        heading("What each model took"),
        shown_table(_in_megabytes(run.table("cost"))),
        note("Weights fetched, memory at the peak of its process, and seconds."),
    ]


def _in_megabytes(cost: pd.DataFrame) -> pd.DataFrame:
    sizes = {"fetched_bytes": "fetched (MB)", "peak_memory": "peak memory (MB)"}
    return cost.assign(**{name: cost[name] / 1e6 for name in sizes}).rename(columns=sizes)
