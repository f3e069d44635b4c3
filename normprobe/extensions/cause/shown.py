"""How a run of ``cause`` is shown: on a terminal, and on the page."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from markupsafe import Markup
from rich.console import Console

from normprobe.extensions.cause.answer_figure import named_interventions
from normprobe.extensions.cause.effect_numbers import (
    effect_rows,
    effects,
    in_words,
    on_map,
    rounded,
)
from normprobe.extensions.cause.figures import (
    DRAWN_BY_LAYER,
    OUTCOME_WORDS,
    SWEPT,
    dose_panels,
    effect_panels,
    known_outcomes,
    with_levels,
)
from normprobe.report.charts import charts
from normprobe.report.page.blocks import curves, heading, note, printed, side_by_side
from normprobe.report.readable import MISSING, ReadableTable, significant
from normprobe.report.terminal import (
    BandColumn,
    NumberColumn,
    print_by_layer,
    print_readable,
)
from normprobe.runs.run_folder import RunStore
from normprobe.tidy import QUANTITY, select

#: Header, factor and decimals of a column.
COLUMN_OF = {
    "share_removed": ("ratio removed (%)", 100, 0),
    "nll": ("NLL (nats)", 1, None),
    "accuracy": ("accuracy (points)", 100, 1),
    "greedy_accuracy": ("own answers (points)", 100, 1),
    "kl": ("KL (nats)", 1, None),
    "changed": ("changed (%)", 100, 1),
}
_ANGLE = "visual angle (x)"
_NOTE = (
    "Against the same samples untouched{}. visual angle: geometric mean over layers. ratio "
    "removed: of the difference between text and visual angle, the sum of |log| over layers that "
    "differ. Nats: a token of the answer, and the one that ends it. [ ]: 95 % interval of this "
    "number alone (bootstrap over images); none: too few images carry it. Findings rest on the "
    "wider band of all of them together: what lies beside 0 here may be no measurable effect there."
)
_OFF = "* outside the usual range: it moves untouched rows further than each control."
#: Of the untouched model.
_LEVELS = {"nll": "nats", "accuracy": "accurate", "greedy_accuracy": "of its own answers"}
_THREE = partial(significant, digits=3)
_LINES = (
    "Hollow: outside the usual range. Dose 1: untouched. A click on a name hides what presses "
    "others flat."
)


def readable(name: str, run: RunStore) -> ReadableTable | None:
    """Other tables as they are."""
    return interventions(run.table(name)) if name == "cause" else None


def interventions(table: pd.DataFrame) -> ReadableTable:
    """An intervention on the whole model a row."""
    rows = table[~table["intervention"].isin(SWEPT)]
    rows = rows.assign(name=named_interventions(rows) + np.where(on_map(rows), "", " *"))
    known = ["share_removed"] * ("share_removed" in {*rows[QUANTITY]}) + known_outcomes(rows)
    cells = [
        [str(done), _angle(of_one), *(effect_cell(of_one, quantity) for quantity in known)]
        for done, of_one in rows.groupby("name", sort=False)
    ]
    headers = [("",), (_ANGLE,), *((COLUMN_OF[quantity][0],) for quantity in known)]
    levels = rows[rows["layer"] == 0].groupby(QUANTITY)["untouched"].first()
    told = [f"{_THREE(levels[name])} {words}" for name, words in _LEVELS.items() if name in levels]
    untouched = f" ({', '.join(told)})" if told else ""
    notes = [_NOTE.format(untouched), *[_OFF] * bool((~on_map(rows)).any())]
    return ReadableTable(headers, cells, [False, *[True] * (len(headers) - 1)], notes)


def _angle(rows: pd.DataFrame) -> str:
    ratios = select(rows, "visual_angle")["mean"].dropna()
    return _THREE(float(np.exp(np.log(ratios).mean()))) if len(ratios) else MISSING


def effect_cell(rows: pd.DataFrame, quantity: str) -> str:
    """``0.047 [0.018, 0.076]``, in the unit of the header."""
    _, scale, decimals = COLUMN_OF[quantity]
    found = effects(select(rows, quantity).dropna(subset="mean"))
    numbers, decimals = rounded(found, scale, decimals)
    return in_words(numbers, decimals) if numbers else MISSING


# --- on a terminal -------------------------------------------------------------------------------


def show(run: RunStore, console: Console) -> None:
    """Print the interventions, and what one layer does."""
    cause = run.table("cause")
    print_readable(replace(interventions(cause), title="Interventions"), console)
    by_layer = cause[cause["intervention"].isin(DRAWN_BY_LAYER) & (cause["layer"] > 0)]
    columns = _layer_columns(by_layer)
    if columns:
        notes = _layer_notes(by_layer)
        print_by_layer("Layer by layer", by_layer, columns, console, notes, "cause.csv")


_LAYER_NOTES = {
    "norm-at-layer": (
        "text / visual angle: untouched, and where this layer alone reads visual states",
        "as loud as text.",
    ),
    "freeze-layer": ("frozen: visual states pass this layer alone unchanged.",),
    "knockout-layer": ("hidden: no other token attends to visual ones in it.",),
    "patch-layer": ("replaced: visual states that enter it are those of another picture.",),
}


def _layer_notes(by_layer: pd.DataFrame) -> list[str]:
    done = {*by_layer["intervention"]}
    return [line for name, lines in _LAYER_NOTES.items() if name in done for line in lines]


def _layer_columns(by_layer: pd.DataFrame) -> list[NumberColumn]:
    """The ratio of angles under other norms, and the first outcome of one frozen layer."""
    columns: list[NumberColumn] = []
    if len(effect_rows(by_layer, "norm-at-layer", "angle_ratio")):
        named, where = "text / visual angle", {"intervention": "norm-at-layer"}
        columns = [
            NumberColumn((named, words), "angle_ratio", where, _THREE, state)
            for words, state in (("untouched", "untouched"), ("as loud as text", "value"))
        ]
    for name, done in SWEPT.items():
        known = [
            quantity for quantity in OUTCOME_WORDS if len(effect_rows(by_layer, name, quantity))
        ]
        for quantity in known[:1]:
            where = {"intervention": name}
            columns += [
                NumberColumn((done, COLUMN_OF[quantity][0]), quantity, where, "{:.4f}".format),
                BandColumn((done, "95 % band"), quantity, where, "{:.4f}".format),
            ]
    return columns


# --- on the page ---------------------------------------------------------------------------------


def lead(run: RunStore) -> Markup:
    """Turning and answers by dose."""
    cause = run.table("cause")
    drawn = charts(dose_panels(cause), with_levels(cause))
    return side_by_side(drawn) + note(_LINES) if drawn else Markup()


def section(run: RunStore) -> list[Markup]:
    """By dose, by intervention, by layer."""
    cause = run.table("cause")
    of_layers = cause[cause["intervention"].isin(DRAWN_BY_LAYER) & (cause["layer"] > 0)]
    by_layer, notes = charts(effect_panels(cause), of_layers), _layer_notes(of_layers)
    drawn = [heading("Layer by layer"), curves(by_layer), note(" ".join(notes))]
    return [
        lead(run),
        *printed(replace(interventions(cause), title="What each intervention does")),
        *(drawn if by_layer else []),
    ]
