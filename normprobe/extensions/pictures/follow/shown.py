"""How a run of ``follow`` is shown: sentences, figure, on a terminal and on the page."""

from dataclasses import replace
from functools import partial
from math import nan

import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure
from rich.console import Console

from normprobe.errors import number_of
from normprobe.extensions.pictures.follow.measure import DECODER, PROJECTOR, TOWER
from normprobe.extensions.pictures.sample_tables import print_left_out
from normprobe.report.charts import Curve, Panel, charts, draw_panels
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given
from normprobe.report.figures.style import GROUP_LOOKS, series_look
from normprobe.report.page.blocks import curves, heading, note
from normprobe.report.page.blocks import shown_table as shown
from normprobe.report.ratio_words import Estimate, Words, brackets, ratios_by_layer
from normprobe.report.readable import significant
from normprobe.report.sentences import LayerPhrases, layer_findings, layers_headline
from normprobe.report.terminal import BandColumn, NumberColumn, print_by_layer
from normprobe.report.verdict import Finding, Verdict, verdict_of
from normprobe.runs.run_folder import RunStore
from normprobe.schema import TEXT, VISUAL
from normprobe.statistics.loud_tokens import LOUDEST, QUIET
from normprobe.statistics.loud_tokens import LOUDEST_CALLED as _CALLED
from normprobe.tidy import BAND, select

# --- in words ------------------------------------------------------------------------------------

_BESIDE = "quiet tokens beside them"
#: What a class gets, beside what: the finding, the quantity, what is compared.
_COMPARED = (
    ("quiet", "attention_to_quiet", "attention", _BESIDE),
    ("rest", "attention_to_rest", "attention", "all others"),
    ("values", "value_share_to_quiet", "of what values add", _BESIDE),
)


def verdict(run: RunStore) -> Verdict:
    """Whether text attends to what is loud behind the tower, and whether that stays loud."""
    table, ranks = run.table("follow"), run.table("follow_ranks")
    samples = int(table["samples"].max())
    named = _named_class(table)
    known = ratios_by_layer(select(table, _OF, group=named or "loudest_1"))
    findings = []
    if named is None:
        headline = (
            "Whether text attends to tokens that are loud behind the tower otherwise than to "
            f"{_BESIDE} is inconclusive."
        )
        if _all_alike(table):
            headline = f"Text attends to tokens that are loud behind the tower as to {_BESIDE}."
    else:
        told, unclear = layers_headline(known, "get ", Words("more", "less"), _BESIDE)
        told = told.replace(" than ", " attention than ", 1)
        headline = f"The {_CALLED[named]} of visual tokens behind the tower {told}"
        headline += f"; {unclear}" * bool(unclear) + "."
        for name, quantity, what, others in _COMPARED:
            of_class = ratios_by_layer(select(table, quantity, group=named))
            begins = f"The {_CALLED[named]} get"
            told_of = LayerPhrases(
                name,
                f"{begins} more {what} than {others}",
                f"{begins} less {what} than {others}",
                f"What the {_CALLED[named]} get {what}, and {others}".replace(
                    "get attention", "get"
                ),
            )
            findings += layer_findings(of_class, told_of)
    findings += [_stays_loud(ranks), _loud_is_read(ranks)]
    return verdict_of(
        headline, findings, brackets([*known.values()], samples, "classes and layers")
    )


_OF = "attention_to_quiet"


def _named_class(table: pd.DataFrame) -> str | None:
    """The smallest class that a layer tells from quiet tokens beside it, by the band of all."""
    for name in LOUDEST:
        ratios = ratios_by_layer(select(table, _OF, group=name))
        if any(ratio.has_interval and ratio.state for ratio in ratios.values()):
            return name
    return None


def _all_alike(table: pd.DataFrame) -> bool:
    known = [ratios_by_layer(select(table, _OF, group=name)) for name in LOUDEST]
    ratios = [ratio for of in known for ratio in of.values()]
    return bool(ratios) and all(ratio.has_interval and ratio.state == 0 for ratio in ratios)


def _stays_loud(ranks: pd.DataFrame) -> Finding:
    """Do norms at the decoder input, and behind the last layer, go with those of the tower?"""
    layers = ranks.loc[ranks["stage"] == DECODER, "layer"]
    places = {"at the decoder input": 0, "behind the last layer": int(layers.max())}
    told, numbers = [], {}
    for where, layer in places.items():
        number = _rank_correlation(ranks, "tower_norm", layer)
        if number.value == number.value:
            told.append(f"{_correlation(number.value, number.low, number.high)} {where}")
            numbers[f"layer {layer}"] = number
    words = f"Rank correlation of norms with those behind the tower: {', '.join(told)}."
    return Finding("stays", words * bool(told), numbers)


def _loud_is_read(ranks: pd.DataFrame) -> Finding:
    """How attention goes with norms behind the tower where it goes with them most."""
    rows = select(ranks, "attention_tower_norm", stage=DECODER).dropna(subset="mean")
    if rows.empty:
        return Finding("read", "")
    most = rows.iloc[int(rows["mean"].abs().to_numpy().argmax())]
    layer = int(most["layer"])
    number = _rank_correlation(ranks, "attention_tower_norm", layer)
    told = _correlation(number.value, number.low, number.high)
    where = f"is furthest from 0 in layer {layer}: {told}"
    words = f"That of attention with norms behind the tower {where}."
    return Finding("read", words, {f"layer {layer}": number})


def _rank_correlation(ranks: pd.DataFrame, quantity: str, layer: int) -> Estimate:
    """That of a decoder layer, with its band over all layers: the layer may be the most of many."""
    rows = select(ranks, quantity, stage=DECODER, layer=layer)
    return Estimate(*rows[["mean", *BAND]].iloc[0]) if len(rows) else Estimate(nan)


def _correlation(value: float, low: float, high: float) -> str:
    ends = f" [{low:.2f}, {high:.2f}]" if low == low and high == high else ""
    return f"{value + 0.0:.2f}{ends}"


# --- drawn ---------------------------------------------------------------------------------------

_LOOKS = {name: series_look(place) for place, name in enumerate(LOUDEST)}
_GREY = GROUP_LOOKS["audio"]._replace(marker="v")
_NORMS = (
    Curve(TEXT, "norm", GROUP_LOOKS[TEXT], {"group": TEXT}),
    Curve(QUIET, "norm", _GREY, {"group": QUIET}),
    Curve(VISUAL, "norm", GROUP_LOOKS[VISUAL], {"group": VISUAL}),
    *(Curve(_CALLED[name], "norm", look, {"group": name}) for name, look in _LOOKS.items()),
)
_LEGEND = tuple(
    curve if curve.name in GROUP_LOOKS else replace(curve, quantity="") for curve in _NORMS
)
_RECEIVED = tuple(Curve(_CALLED[name], _OF, look, {"group": name}) for name, look in _LOOKS.items())
_PANELS = (
    Panel("norm, from the patch embedding to the last decoder layer", _NORMS),
    Panel("attention of text, over that to quiet tokens beside", _RECEIVED, "ratio"),
)


def _in_a_row(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[int, str]]:
    """The table with places on one axis as layers, and what stands at each."""
    cells = table[["stage", "layer"]].drop_duplicates()
    order = {stage: number for number, stage in enumerate((TOWER, PROJECTOR, DECODER))}
    cells = cells.sort_values(
        ["stage", "layer"], key=lambda c: c.map(order) if c.name == "stage" else c
    )
    places = {tuple(cell): place for place, cell in enumerate(cells.itertuples(index=False))}
    keys = zip(table["stage"], table["layer"], strict=True)
    labels = {
        place: "P" if stage == PROJECTOR else str(layer) for (stage, layer), place in places.items()
    }
    return table.assign(layer=[places[key] for key in keys]), labels


def drawings(_run: RunStore) -> list[Drawing]:
    """The figure of a run: the way of a visual token from pixels to the last layer."""
    return [Drawing("follow", ("follow",), draw_follow)]


def draw_follow(title: str, follow: pd.DataFrame, ax: Given = None) -> Figure:
    """Norms in tower, projector and decoder on one axis, text beside them; attention below."""
    table, labels = _in_a_row(follow)
    known = [panel for panel in _PANELS if len(panel.values(table))]
    drawn = draw_panels(title, known, table, ax, columns=1, height=2.3, legend=_LEGEND)
    step = max(1, len(labels) // 24)
    begins = [place for place, label in labels.items() if label in ("0", "P") and place]
    ticks = sorted({*[place for place in labels if place % step == 0], *begins, max(labels)})
    for axes in drawn.axes:
        for place in begins:
            axes.axvline(place - 0.5, color="0.75", linewidth=0.8, zorder=0)
        axes.set_xticks(ticks, labels=[labels[place] for place in ticks])
        axes.set_xlim(-0.5, max(labels) + 0.5)
        if axes.get_xlabel():
            axes.set_xlabel(
                "block of the vision tower | P: projector | decoder layer, 0: its input"
            )
    return drawn


# --- on a terminal, and on the page --------------------------------------------------------------

_TWO, _THREE = (partial(significant, digits=digits) for digits in (2, 3))
_OF_NORMS = tuple(
    NumberColumn(("norm", called), "norm", {"group": group}, written=_THREE)
    for called, group in (
        (VISUAL, VISUAL),
        ("loudest 1 %", "loudest_1"),
        (QUIET, QUIET),
        (TEXT, TEXT),
    )
)
_OF_ATTENTION = (
    *(
        NumberColumn(("attention / quiet", _CALLED[name]), _OF, {"group": name}, written=_TWO)
        for name in LOUDEST
    ),
    BandColumn(("95 % band", "loudest 1 %"), _OF, {"group": "loudest_1"}, written=_TWO),
)
_NOTES = (
    "norm: mean over tokens. loudest: by the norm behind the tower. quiet: for each",
    "of the loudest 5 % the nearest tokens before and behind it whose norm is not",
    "above the median. attention / quiet: that a token gets of text behind the",
    "pictures, over that to its quiet tokens. 95 % band: over images, in all classes",
    "and layers together.",
)


def show(run: RunStore, console: Console) -> None:
    """Print the way through tower and decoder."""
    table = run.table("follow")
    samples = number_of(int(table["samples"].max()), "sample")
    for stage in (TOWER, DECODER):
        rows = table[table["stage"] == stage]
        if len(rows):
            columns = _OF_NORMS if stage == TOWER else (*_OF_NORMS, *_OF_ATTENTION)
            title = f"Visual tokens in the {stage} ({samples})"
            notes = _NOTES if stage == DECODER else ()
            print_by_layer(title, rows, columns, console, notes, "follow.csv")
    print_left_out(run, console)


def section(run: RunStore) -> list[Markup]:
    """The way on one axis, and its numbers."""
    table, labels = _in_a_row(run.table("follow"))
    begins = next((place for place, label in labels.items() if label == "0" and place), 0)
    return [
        heading("From pixels to the last layer"),
        curves(charts(_PANELS, table)),
        note(
            f"On one axis: blocks of the vision tower, projector, and from {begins} on the decoder."
        ),
        shown(run.table("follow_ranks")),
    ]
