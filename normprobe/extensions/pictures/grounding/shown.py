"""How a run of ``grounding`` is shown: sentences, figures, on a terminal and on the page."""

from collections.abc import Mapping
from functools import partial

import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure
from rich.console import Console

from normprobe.errors import number_of
from normprobe.extensions.pictures.grounding.measure import QUANTITIES
from normprobe.extensions.pictures.sample_tables import print_left_out
from normprobe.report.charts import Curve, Panel, charts, draw_panels
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given
from normprobe.report.figures.style import GROUP_LOOKS, series_look
from normprobe.report.page.blocks import curves, heading, note
from normprobe.report.page.blocks import shown_table as shown
from normprobe.report.ratio_words import Estimate, brackets
from normprobe.report.readable import of_one_size, significant
from normprobe.report.sentences import in_some_samples, layers_named
from normprobe.report.terminal import (
    ALIGNED,
    BandColumn,
    NumberColumn,
    print_by_layer,
)
from normprobe.report.verdict import OPEN, Finding, Verdict, verdict_of
from normprobe.runs.run_folder import RunStore
from normprobe.schema import STRUCTURAL, VISUAL
from normprobe.tidy import BAND, select

# --- in words ------------------------------------------------------------------------------------

#: Quantity -> what is said of a gap above 0, of one below 0, what it is, and where.
_GAPS = {
    "cosine": (
        "Visual tokens inside a word's box are closer to the word than others",
        "Visual tokens inside a word's box are farther from the word than others",
        "Cosine with the word inside and outside its box",
        "after",
    ),
    "score": (
        "The word's attention score is higher for visual tokens inside its box",
        "The word's attention score is lower for visual tokens inside its box",
        "The word's attention score inside and outside its box",
        "in",
    ),
}


def verdict(run: RunStore) -> Verdict:
    """What the visual tokens that a word means have ahead of the others, layer by layer."""
    return grounding_verdict(run.table("grounding"))


def grounding_verdict(grounding: pd.DataFrame) -> Verdict:
    """What the visual tokens that a word means have ahead of the others, layer by layer."""
    cosines, scores = gaps_of(grounding, "cosine"), gaps_of(grounding, "score")
    if not cosines:
        return Verdict()
    samples = int(grounding["samples"].max())
    findings = [*_findings("cosine", cosines), *_findings("score", scores)]
    if scores:
        held = {"Attention scores": float(select(grounding, "score_gap")["samples"].max())}
        findings.append(in_some_samples(held, samples))
    first, unclear = findings[0], [n for n, gap in cosines.items() if gap.sign is None]
    headline = f"{first.words.partition(':')[0]}."
    if first.name.endswith(OPEN):
        headline = f"Whether visual tokens inside a word's box are closer to it is {OPEN}."
    elif unclear:
        named = layers_named(unclear, len(cosines), ";").removeprefix("; ")
        headline = f"{headline[:-1]}; {named} {'is' if len(unclear) == 1 else 'are'} {OPEN}."
    return verdict_of(headline, findings, brackets([*cosines.values()], samples, "layers"))


def gaps_of(grounding: pd.DataFrame, quantity: str) -> dict[int, Estimate]:
    """The gap of each layer that has one, with its band over all layers."""
    rows = select(grounding, f"{quantity}_gap").set_index("layer")[["mean", *BAND]].astype(float)
    known = rows[rows["mean"].notna()]
    return {int(layer): Estimate(*numbers) for layer, *numbers in known.itertuples()}


def _findings(quantity: str, gaps: Mapping[int, Estimate]) -> list[Finding]:
    """Each direction with its layers, and how far the largest gap goes."""
    above, below, what, where = _GAPS[quantity]
    found = []
    for sign, words in ((1, above), (-1, below), (None, "")):
        known = {layer: gap for layer, gap in gaps.items() if gap.sign == sign}
        if not known:
            continue
        layers = layers_named([*known], len(gaps), where)
        name = {1: "above", -1: "below", None: OPEN}[sign]
        told = f"{words} {layers}: gap {_largest(known)}." if sign else f"{what}: {OPEN} {layers}."
        if not any(gap.has_interval for gap in gaps.values()):
            told = f"{what}: gap {_largest(known)}, {OPEN} without an interval."
        numbers = {f"layer {layer}": gap for layer, gap in known.items()}
        found.append(Finding(f"{quantity}.{name}", told, numbers))
    return found


def _largest(gaps: Mapping[int, Estimate]) -> str:
    """``0.060 [0.012, 0.11] (layer 4)``."""
    layer = max(gaps, key=lambda number: abs(gaps[number].value))
    gap = gaps[layer]
    told, *ends = of_one_size([gap.value, *([gap.low, gap.high] if gap.has_interval else [])])
    text = f"{told} [{', '.join(ends)}]" if ends else told
    return text if len(gaps) == 1 else f"up to {text} (layer {layer})"


# --- drawn ---------------------------------------------------------------------------------------

_SIDES = {"outside": GROUP_LOOKS[STRUCTURAL], "inside": GROUP_LOOKS[VISUAL]}

#: How far ahead the visual tokens are that a word means: by cosine and by attention score.
GAPS = tuple(
    Panel(title, [Curve("gap", f"{quantity}_gap", series_look(0))], "difference")
    for quantity, title in (
        ("cosine", "cosine with the word, inside - outside"),
        ("score", "attention score of the word, inside - outside"),
    )
)
#: What the gaps are the difference of.
SIDE_LOOKS = tuple(
    Panel(
        f"{quantity} of a word and visual tokens",
        [Curve(side, f"{quantity}_{side}", look) for side, look in _SIDES.items()],
        "near",
    )
    for quantity in QUANTITIES
)

#: Panels of gaps beside each other, with 95 % intervals and bands over images.
beside_each_other = partial(draw_panels, columns=2, height=2.1)


def drawings(_run: RunStore) -> list[Drawing]:
    """The figures of a run of ``grounding``."""
    return [Drawing("grounding", ("grounding",), draw_gaps)]


def draw_gaps(title: str, grounding: pd.DataFrame, ax: Given = None) -> Figure:
    """Cosine and score gap by layer."""
    return beside_each_other(title, GAPS, grounding, ax)


# --- on a terminal, and on the page --------------------------------------------------------------

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
    """Print cosine and score of a word and visual tokens layer by layer."""
    grounding = run.table("grounding")
    samples = int(grounding["samples"].max())
    notes = [f"{number_of(samples, 'sample')} with a word and a box around what it means.", *_NOTES]
    if select(grounding, "score_gap")["mean"].isna().all():
        notes.append("No scores: this model returns attention weights alone.")
    title = "Words and what they mean" + ALIGNED * ("alignment" in run.record)
    print_by_layer(title, grounding, _COLUMNS, console, notes, "grounding.csv")
    print_left_out(run, console)


def section(run: RunStore) -> list[Markup]:
    """Gaps, and what they are the difference of, layer by layer."""
    grounding = run.table("grounding")
    declared = [panel for pair in zip(GAPS, SIDE_LOOKS, strict=True) for panel in pair]
    return [
        heading("A word and what it means"),
        curves(charts(declared, grounding)),
        note("Means over samples; intervals and bands are over images. Layer 0: decoder input."),
        shown(grounding),
    ]
