"""What a terminal shows of a survey."""

from rich.console import Console
from rich.text import Text

from normprobe.measurements.survey.printed import printed_of
from normprobe.measurements.survey.words import verdict
from normprobe.report.readable import significant
from normprobe.report.terminal import (
    add_column,
    new_table,
    print_notes,
    print_sentence,
    print_table,
)
from normprobe.runs.run_folder import RunStore

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
