"""How a run of ``grounding`` is shown: on a terminal, and on the page."""

from functools import partial

from rich.console import Console

from normprobe.errors import number_of
from normprobe.measurements.grounding.figures import GAPS, SIDE_LOOKS
from normprobe.measurements.grounding.measure import QUANTITIES
from normprobe.measurements.grounding.words import verdict
from normprobe.report.charts import charts
from normprobe.report.page.blocks import curves, heading, note, sentence
from normprobe.report.page.blocks import shown_table as shown
from normprobe.report.page.markup import Markup
from normprobe.report.readable import significant
from normprobe.report.terminal import (
    ALIGNED,
    BandColumn,
    NumberColumn,
    print_by_layer,
    print_notes,
    print_sentence,
)
from normprobe.runs.run_folder import RunStore

_TWO, _THREE = (partial(significant, digits=digits) for digits in (2, 3))
#: Outside is inside - gap.
_COLUMNS = [
    column
    for quantity in QUANTITIES
    for column in (
        NumberColumn((quantity, "inside"), f"{quantity}_inside", written=_THREE),
        NumberColumn((quantity, "gap"), f"{quantity}_gap", written=_THREE),
        BandColumn((quantity, "95 % band"), f"{quantity}_gap", written=_TWO),
    )
]
_NOTES = (
    "cosine: of a word's tokens and the visual tokens inside and outside of the box,",
    "after the layer (0: decoder input). score: q k of the word before the softmax,",
    "mean over heads. gap: inside - outside (Eq. 21). 95 % band: of the gap over",
    "images, in all layers together.",
)


def show(run: RunStore, console: Console) -> None:
    """Print cosine and score of a word and visual tokens layer by layer, and what they say."""
    grounding = run.table("grounding")
    samples = int(grounding["samples"].max())
    notes = [f"{number_of(samples, 'sample')} with a word and a box around what it means.", *_NOTES]
    if grounding["score_gap"].isna().all():
        notes.append("No scores: this model returns attention weights alone.")
    title = "Words and what they mean" + ALIGNED * ("alignment" in run.record)
    print_by_layer(title, grounding, _COLUMNS, console, notes, "grounding.csv")
    if run.has_table("left_out"):
        out = number_of(len(run.table("left_out")), "sample")
        print_notes(console, f"{out} left out: left_out.csv says why.")
    print_sentence(verdict(run), console)


def section(run: RunStore) -> list[Markup]:
    """Gaps, and what they are the difference of, layer by layer."""
    grounding = run.table("grounding")
    declared = [panel for pair in zip(GAPS, SIDE_LOOKS, strict=True) for panel in pair]
    return [
        sentence(verdict(run)),
        heading("A word and what it means"),
        curves(charts(declared, grounding)),
        note("Means over samples; intervals and bands are over images. Layer 0: decoder input."),
        shown(grounding),
    ]
