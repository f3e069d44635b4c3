"""How a run of ``nearest`` is shown: sentences, figure, on a terminal and on the page."""

from functools import partial

import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure
from rich.console import Console

from normprobe.errors import number_of
from normprobe.extensions.pictures.sample_tables import print_left_out
from normprobe.report.charts import Curve, Panel, charts, draw_panels
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given
from normprobe.report.figures.style import GROUP_LOOKS
from normprobe.report.page.blocks import curves, heading, note
from normprobe.report.page.blocks import shown_table as shown
from normprobe.report.ratio_words import Words, brackets, ratios_by_layer
from normprobe.report.readable import readable_token, significant
from normprobe.report.sentences import LayerPhrases, layer_findings, layers_headline, layers_named
from normprobe.report.terminal import BandColumn, NumberColumn, print_by_layer, print_notes
from normprobe.report.verdict import Finding, Verdict, verdict_of
from normprobe.runs.run_folder import RunStore
from normprobe.schema import STRUCTURAL, TEXT, VISUAL
from normprobe.tidy import select

# --- in words ------------------------------------------------------------------------------------

_TOLD = LayerPhrases(
    "word",
    "More visual tokens are near a word than by chance",
    "Fewer visual tokens are near a word than by chance",
    "Visual tokens near a word, and as many by chance",
)
#: How many words a sentence names.
_FEW = 3


def verdict(run: RunStore) -> Verdict:
    """Whether more visual tokens are near a word than by chance, and which words these are."""
    nearest = run.table("nearest")
    rows = select(nearest, "to_chance").dropna(subset="mean")
    none = rows.loc[rows["mean"] == 0, "layer"].tolist()
    ratios = ratios_by_layer(rows[rows["mean"] > 0])
    told, unclear = layers_headline(
        ratios, "are near a word ", Words("more often", "less often"), "by chance"
    )
    if told:
        headline = f"Visual tokens {told}" + f"; {unclear}" * bool(unclear) + "."
    elif ratios:
        headline = "Whether more visual tokens are near a word than by chance is inconclusive."
    else:
        headline = "No visual token is nearer to a word than chance would have it."
    findings = [*layer_findings(ratios, _TOLD), _near_none(none, len(rows)), *_cosines(nearest)]
    samples = int(nearest["samples"].max())
    bracketed = brackets([*ratios.values()], samples, "layers") if ratios else ""
    return verdict_of(headline, [*findings, _at_input(run)], bracketed)


def _near_none(layers: list[int], total: int) -> Finding:
    """Of layers in which no token has a word no ratio is told."""
    where = layers_named(layers, total) if layers else ""
    words = f"No visual token is nearer to a word than chance would have it {where}."
    return Finding("none", words * bool(layers and len(layers) < total))


def _cosines(nearest: pd.DataFrame) -> list[Finding]:
    """How near the nearest words are where that is most above those of permuted pictures."""
    near, permuted = (
        select(nearest, f"{of}_cosine").set_index("layer")["mean"] for of in ("nearest", "permuted")
    )
    apart = (near - permuted).dropna()
    if apart.empty:
        return []
    place = int(apart.to_numpy().argmax())
    layer = int(apart.index.to_numpy()[place])
    words = (
        f"Mean cosine with the nearest word, where it is most above permuted pictures (layer "
        f"{layer}): {near[layer]:.2f} against {permuted[layer]:.2f}."
    )
    return [Finding("cosine", words)]


def _at_input(run: RunStore) -> Finding:
    """The words at the decoder input."""
    words = run.table("nearest_words")
    first = words[words["layer"] == 0].head(_FEW)
    named = ", ".join(readable_token(each) for each in first["word"])
    told = f"Nearest to most visual tokens at the decoder input: {named}."
    return Finding("words", told * bool(len(first)))


# --- drawn ---------------------------------------------------------------------------------------

_PANELS = (
    Panel(
        "cosine with the nearest word",
        [
            Curve(TEXT, "text_cosine", GROUP_LOOKS[TEXT]),
            Curve("pixels permuted", "permuted_cosine", GROUP_LOOKS[STRUCTURAL]),
            Curve(VISUAL, "nearest_cosine", GROUP_LOOKS[VISUAL]),
        ],
        "cosine",
    ),
    Panel(
        "share of visual tokens nearer than chance",
        [
            Curve("by chance", "chance", GROUP_LOOKS[STRUCTURAL]),
            Curve(VISUAL, "above_chance", GROUP_LOOKS[VISUAL]),
        ],
        "share",
    ),
)


def drawings(_run: RunStore) -> list[Drawing]:
    """The figure of a run."""
    return [Drawing("nearest", ("nearest",), draw_nearest)]


def draw_nearest(title: str, nearest: pd.DataFrame, ax: Given = None) -> Figure:
    """How near words are, and how many tokens have one, by layer."""
    known = [panel for panel in _PANELS if len(panel.values(nearest))]
    return draw_panels(title, known, nearest, ax, columns=2, height=2.3)


# --- on a terminal, and on the page --------------------------------------------------------------

_TWO, _THREE = (partial(significant, digits=digits) for digits in (2, 3))
_COLUMNS = (
    NumberColumn(("cosine", VISUAL), "nearest_cosine", written=_TWO),
    NumberColumn(("cosine", "permuted"), "permuted_cosine", written=_TWO),
    NumberColumn(("cosine", TEXT), "text_cosine", written=_TWO),
    NumberColumn(("near a word", "share"), "above_chance", written=_THREE),
    NumberColumn(("near a word", "x chance"), "to_chance", written=_THREE),
    BandColumn(("95 % band", "x chance"), "to_chance", written=_TWO),
)
_NOTES = (
    "cosine: with the nearest row of the text table, mean over tokens. permuted: of",
    "the same pictures with their pixels permuted. near a word: visual tokens nearer",
    "to a word than the nearest 5 % of the permuted pictures' tokens are to theirs.",
    "95 % band: over images, in all layers together.",
)


def show(run: RunStore, console: Console) -> None:
    """Print how near words are layer by layer, and the words at the decoder input."""
    nearest, words = run.table("nearest"), run.table("nearest_words")
    samples = number_of(int(nearest["samples"].max()), "sample")
    title = f"Visual tokens and their nearest words ({samples})"
    print_by_layer(title, nearest, _COLUMNS, console, _NOTES, "nearest.csv")
    lines = []
    for layer in _looked_at(words):
        first = words[words["layer"] == layer].head(_FEW)
        named = (
            f"{readable_token(w)} ({s:.0%})"
            for w, s in zip(first["word"], first["share"], strict=True)
        )
        lines.append(f"Layer {layer}: {', '.join(named).replace('%', ' %')}")
    print_notes(
        console, "Words that are the nearest to most visual tokens, and their share:", *lines
    )
    print_left_out(run, console)


def _looked_at(words: pd.DataFrame) -> list[int]:
    """The decoder input, a layer in the middle, the last one."""
    layers = sorted(words["layer"].unique())
    return sorted({layers[0], layers[len(layers) // 2], layers[-1]}) if layers else []


def section(run: RunStore) -> list[Markup]:
    """Cosines and shares, layer by layer, and the words."""
    nearest, words = run.table("nearest"), run.table("nearest_words")
    some = words[words["layer"].isin(_looked_at(words))].groupby("layer").head(2 * _FEW)
    return [
        heading("The nearest words"),
        curves(charts(_PANELS, nearest)),
        note(
            "Means over samples; intervals and bands are over images. By chance: as near as the "
            "nearest 5 % of tokens of the same pictures with their pixels permuted."
        ),
        shown(nearest),
        shown(some.assign(word=some["word"].map(readable_token))),
    ]
