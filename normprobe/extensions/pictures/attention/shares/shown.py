"""How a run of ``attention --data`` is shown: sentences, figure, on a terminal and on the page."""

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
from normprobe.report.figures.style import GROUP_LOOKS, series_look
from normprobe.report.page.blocks import curves, heading, note
from normprobe.report.page.blocks import shown_table as shown
from normprobe.report.ratio_words import Words, brackets, ratios_by_layer
from normprobe.report.readable import significant
from normprobe.report.sentences import LayerPhrases, layer_findings, layers_headline
from normprobe.report.terminal import BandColumn, NumberColumn, print_by_layer
from normprobe.report.verdict import Finding, Verdict, verdict_of
from normprobe.runs.run_folder import RunStore
from normprobe.schema import STRUCTURAL, TEXT, VISUAL
from normprobe.tidy import select

# --- in words ------------------------------------------------------------------------------------

_EVEN = LayerPhrases(
    "share",
    "Visual tokens get more attention than an even spread would give",
    "Visual tokens get less attention than an even spread would give",
    "Attention to visual tokens and an even spread",
)
_KEYS = LayerPhrases(
    "keys",
    "Keys of visual tokens are larger than those of text",
    "Keys of visual tokens are smaller than those of text",
    "Norms of the keys of visual tokens and of text",
)


def verdict(run: RunStore) -> Verdict:
    """How much of the attention of text visual tokens get, and how large their keys are."""
    shares = run.table("shares")
    ratios = ratios_by_layer(select(shares, "share_to_even"))
    of_keys = ratios_by_layer(select(shares, "key_norm_ratio"))
    share = select(shares, "share")["mean"]
    if select(shares, "even_share")["mean"].eq(1).all():
        headline = (
            "Text attends to visual states alone (cross-attention): that they get all of it is "
            "no finding."
        )
        return Verdict(headline)
    told, unclear = layers_headline(ratios, "", Words("more", "less"), "an even spread")
    headline = f"Text gives {_percent(share)} of its attention to visual tokens"
    headline += f", {told}" * bool(told) + f"; {unclear}" * bool(unclear) + "."
    content = select(shares, "share_of_content")["mean"]
    findings = [*layer_findings(ratios, _EVEN), *layer_findings(of_keys, _KEYS)]
    if len(content):
        words = f"Of what visual and text tokens get, visual tokens get {_percent(content)}."
        findings.insert(0, Finding("content", words))
    samples = int(shares["samples"].max())
    return verdict_of(headline, findings, brackets([*ratios.values()], samples, "layers"))


def _percent(shares: "pd.Series[float]") -> str:
    low, high = (f"{100 * share:.0f}" for share in (shares.min(), shares.max()))
    return f"{low} %" if low == high else f"{low} to {high} %"


# --- drawn ---------------------------------------------------------------------------------------

_PLAIN = series_look(0)
_PANELS = (
    Panel(
        "attention on visual tokens",
        [
            Curve("spread evenly", "even_share", GROUP_LOOKS[STRUCTURAL]),
            Curve("share", "share", GROUP_LOOKS[VISUAL]),
        ],
        "signed",
    ),
    Panel("visual / (visual + text)", [Curve("share", "share_of_content", _PLAIN)], "signed"),
    Panel("entropy of attention (1: even)", [Curve("entropy", "entropy", _PLAIN)], "signed"),
    Panel(
        "norm of keys",
        [
            Curve(TEXT, "text_key_norm", GROUP_LOOKS[TEXT]),
            Curve(VISUAL, "visual_key_norm", GROUP_LOOKS[VISUAL]),
        ],
    ),
)


def drawings(_run: RunStore) -> list[Drawing]:
    """The figure of a run."""
    return [Drawing("shares", ("shares",), draw_shares)]


def draw_shares(title: str, shares: pd.DataFrame, ax: Given = None) -> Figure:
    """How much, how evenly, and how large the keys are, by layer."""
    known = [panel for panel in _PANELS if len(panel.values(shares))]
    return draw_panels(title, known, shares, ax, columns=2, height=2.1)


# --- on a terminal, and on the page --------------------------------------------------------------

_TWO, _THREE = (partial(significant, digits=digits) for digits in (2, 3))
_COLUMNS = (
    NumberColumn(("share",), "share", written=_THREE),
    NumberColumn(("even",), "even_share", written=_THREE),
    NumberColumn(("x even",), "share_to_even", written=_THREE),
    BandColumn(("95 % band",), "share_to_even", written=_TWO),
    NumberColumn(("V/(V+T)",), "share_of_content", written=_THREE),
    NumberColumn(("entropy",), "entropy", written=_THREE),
    NumberColumn(("keys V/T",), "key_norm_ratio", written=_THREE),
)
_NOTES = (
    "share: of the attention of text behind the pictures, what visual tokens get; mean",
    "over heads, tokens, samples. even: if spread evenly over all that may be seen.",
    "95 % band: of x even, over images, in all layers together. V/(V+T): of what",
    "visual and text tokens get. entropy: over the visual tokens, 1: even. keys V/T:",
    "norm of keys, visual over text.",
)


def show(run: RunStore, console: Console) -> None:
    """Print the shares layer by layer."""
    shares = run.table("shares")
    samples = number_of(int(shares["samples"].max()), "sample")
    title = f"Attention of text to pictures ({samples})"
    print_by_layer(title, shares, _COLUMNS, console, _NOTES, "shares.csv")
    print_left_out(run, console)


def section(run: RunStore) -> list[Markup]:
    """Shares and keys, layer by layer."""
    shares = run.table("shares")
    return [
        heading("Attention to pictures, layer by layer"),
        curves(charts(_PANELS, shares)),
        note("Means over samples; intervals and bands are over images."),
        shown(shares),
    ]
