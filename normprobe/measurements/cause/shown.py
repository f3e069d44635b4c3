"""How a run of ``cause`` is shown: on a terminal, and on the page."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from rich.console import Console

from normprobe.measurements.cause.figures import (
    OF_ONE_LAYER,
    OUTCOME_WORDS,
    dose_panels,
    effect_panels,
    known_outcomes,
    named_interventions,
    with_levels,
)
from normprobe.measurements.cause.words import (
    effect_rows,
    effects,
    in_words,
    main_sentences,
    on_map,
    rounded,
    verdict,
)
from normprobe.report.charts import charts
from normprobe.report.page.blocks import curves, heading, note, printed, sentence, side_by_side
from normprobe.report.page.markup import Markup
from normprobe.report.readable import MISSING, ReadableTable, significant
from normprobe.report.terminal import (
    BandColumn,
    NumberColumn,
    print_by_layer,
    print_readable,
    print_sentence,
)
from normprobe.runs.run_folder import RunStore

#: Header, factor and decimals of a column.
COLUMN_OF = {
    "share_removed": ("ratio removed (%)", 100, 0),
    "nll": ("NLL (nats)", 1, None),
    "accuracy": ("accuracy (points)", 100, 1),
    "kl": ("KL (nats)", 1, None),
    "changed": ("changed (%)", 100, 1),
}
_ANGLE = "visual angle (x)"
_NOTE = (
    "Against the same samples untouched{}. visual angle: geometric mean over layers. ratio "
    "removed: of the difference between text and visual angle, the sum of |log| over layers. Nats: "
    "a token of the answer. In brackets: 95 % intervals over images."
)
_OFF = (
    "* off the map: text states move further than by the placebo, or answers than by a grey "
    "picture."
)
_LEVELS = {"nll": "nats", "accuracy": "accurate"}  # of the untouched model
_THREE = partial(significant, digits=3)
_LINES = "Hollow: off the map. Dose 1: untouched. A click on a name hides what presses others flat."


def readable(name: str, table: pd.DataFrame) -> ReadableTable | None:
    """Other tables as they are."""
    return interventions(table) if name == "cause" else None


def interventions(table: pd.DataFrame) -> ReadableTable:
    """An intervention on the whole model a row."""
    rows = table[table["intervention"] != "freeze-layer"]
    rows = rows.assign(name=named_interventions(rows) + np.where(on_map(rows), "", " *"))
    known = [*rows.loc[rows["quantity"] == "share_removed", "quantity"][:1], *known_outcomes(rows)]
    cells = [
        [str(done), _angle(of_one), *(effect_cell(of_one, quantity) for quantity in known)]
        for done, of_one in rows.groupby("name", sort=False)
    ]
    headers = [("",), (_ANGLE,), *((COLUMN_OF[quantity][0],) for quantity in known)]
    levels = rows[rows["layer"] == 0].groupby("quantity")["untouched"].first()
    told = [f"{_THREE(levels[name])} {words}" for name, words in _LEVELS.items() if name in levels]
    untouched = f" ({', '.join(told)})" if told else ""
    notes = [_NOTE.format(untouched), *[_OFF] * bool((~on_map(rows)).any())]
    return ReadableTable(headers, cells, [False, *[True] * (len(headers) - 1)], notes)


def _angle(rows: pd.DataFrame) -> str:
    ratios = rows.loc[rows["quantity"] == "visual_angle", "effect"].dropna()
    return _THREE(float(np.exp(np.log(ratios).mean()))) if len(ratios) else MISSING


def effect_cell(rows: pd.DataFrame, quantity: str) -> str:
    """``0.047 [0.018, 0.076]``, in the unit of the header."""
    _, scale, decimals = COLUMN_OF[quantity]
    found = effects(rows[(rows["quantity"] == quantity) & rows["effect"].notna()])
    numbers, decimals = rounded(found, scale, decimals)
    return in_words(numbers, decimals) if numbers else MISSING


# --- on a terminal -------------------------------------------------------------------------------


def show(run: RunStore, console: Console) -> None:
    """Print the interventions, what one layer does, and what they say."""
    cause = run.table("cause")
    print_readable(replace(interventions(cause), title="Interventions"), console)
    by_layer = cause[cause["intervention"].isin(OF_ONE_LAYER) & (cause["layer"] > 0)]
    columns = _layer_columns(by_layer)
    if columns:
        print_by_layer("Layer by layer", by_layer, columns, console, _LAYER_NOTES, "cause.csv")
    print_sentence(verdict(run), console)


_LAYER_NOTES = (
    "text / visual angle: untouched, and where this layer alone reads visual states",
    "as loud as text. frozen: visual states pass this layer alone unchanged.",
)


def _layer_columns(by_layer: pd.DataFrame) -> list[NumberColumn]:
    """The ratio of angles under other norms, and the first outcome of one frozen layer."""
    columns = []
    if len(effect_rows(by_layer, "norm-at-layer", "angle_ratio")):
        where = {"intervention": "norm-at-layer", "quantity": "angle_ratio"}
        columns = [
            NumberColumn(("text / visual angle", words), column, where, _THREE)
            for words, column in (("untouched", "untouched"), ("as loud as text", "value"))
        ]
    for quantity in [
        name for name in OUTCOME_WORDS if len(effect_rows(by_layer, "freeze-layer", name))
    ][:1]:
        where = {"intervention": "freeze-layer", "quantity": quantity}
        columns += [
            NumberColumn(("frozen", COLUMN_OF[quantity][0]), "effect", where, "{:.4f}".format),
            BandColumn(("frozen", "95 % band"), "effect", where, "{:.4f}".format),
        ]
    return columns


# --- on the page ---------------------------------------------------------------------------------


def headline(run: RunStore) -> str:
    """What turning comes from, and what all of it is worth."""
    return main_sentences(run)


def lead(run: RunStore) -> Markup:
    """Turning and answers by dose."""
    cause = run.table("cause")
    drawn = charts(dose_panels(cause), with_levels(cause))
    return side_by_side(drawn) + note(_LINES) if drawn else Markup()


def section(run: RunStore) -> list[Markup]:
    """By dose, by intervention, by layer."""
    cause = run.table("cause")
    by_layer = charts(effect_panels(cause), cause[cause["layer"] > 0])
    drawn = [heading("Layer by layer"), curves(by_layer), note(" ".join(_LAYER_NOTES))]
    return [
        sentence(verdict(run)),
        lead(run),
        *printed(replace(interventions(cause), title="What each intervention does")),
        *(drawn if by_layer else []),
    ]
