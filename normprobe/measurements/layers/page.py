"""The section of the page that shows a run of ``layers``."""

from normprobe.measurements.layers.accounted import accounted_verdict
from normprobe.measurements.layers.assumptions import LEGEND, theory_verdict
from normprobe.measurements.layers.branches import branches_verdict
from normprobe.measurements.layers.charts import (
    accounted_charts,
    branch_charts,
    layer_charts,
    loudness_and_turning,
    massive_charts,
    theory_charts,
)
from normprobe.measurements.layers.heat_map import heat_map
from normprobe.measurements.layers.massive import KINDS, MASSIVE
from normprobe.measurements.layers.words import (
    attention_input_verdict,
    layers_verdict,
    massive_words,
    placement_sentence,
)
from normprobe.report.page.blocks import curves, heading, note, panels, sentence
from normprobe.report.page.blocks import table as shown
from normprobe.report.page.markup import Markup
from normprobe.report.sentences import broken_states_sentence
from normprobe.runs.run_folder import RunStore

#: Columns of ``assumptions.csv`` in an order that a narrow screen can cut off.
_VERDICT_FIRST = ["assumption", "source", "number", "verdict", "low", "high", "worst"]
_VERDICT_FIRST += ["worst_band_low", "worst_band_high", "worst_layer", "median"]
_VERDICT_FIRST += ["holds_in", "fails_in", "open_in", "exempt_in"]

_OVER = "Intervals and bands are over images."
_LINES = f"Lines: means over tokens. {_OVER} Layer 0: decoder input."


def headline(run: RunStore) -> str:
    """How loud visual tokens are and how fast they turn."""
    layers = run.rows_of("layers")
    if layers is None:
        return ""
    placement = placement_sentence(str(run.record.get("norm_placement") or ""))
    told = [broken_states_sentence(layers), layers_verdict(layers), placement]
    return " ".join(filter(None, told))


def lead(run: RunStore) -> Markup:
    """Loudness and turning by layer."""
    layers = run.rows_of("layers")
    charts = [] if layers is None else loudness_and_turning(layers)
    return panels(charts) + note(_LINES) if charts else Markup()


def section(run: RunStore) -> list[Markup]:
    """Curves, layer by layer as a heat map, and the theory beside the measurement."""
    layers, theory = run.rows_of("layers"), run.rows_of("theory")
    assumptions = run.rows_of("assumptions")
    if layers is None:
        return []
    blocks = [
        sentence(headline(run)),
        lead(run),
        sentence(attention_input_verdict(layers)),
        heading("Through the decoder"),
        curves(layer_charts(layers)),
        note(_LINES),
        heading("Layer by layer"),
        heat_map(layers),
        note(
            "Darker is larger, within one metric; a metric with a wide range is shaded by its "
            "logarithm. angle: radians per layer. update: |h - x| / |x|."
        ),
    ]
    massive = run.rows_of("massive")
    if massive is not None:
        blocks += [
            heading("Massive activations"),
            sentence(massive_words(run)),
            curves(massive_charts(massive)),
            note(f"{MASSIVE} {KINDS} {_OVER}"),
        ]
    accounted = run.rows_of("accounted")
    if accounted is not None:
        blocks += [
            heading("What accounts for it in Eq. 13"),
            sentence(accounted_verdict(accounted)),
            curves(accounted_charts(accounted)),
            note(f"Parts by Eq. 13 add up to the logarithm. {_OVER}"),
        ]
    branches = run.rows_of("branches")
    if branches is not None:
        blocks += [
            heading("Attention and MLP, each by itself"),
            sentence(branches_verdict(branches)),
            curves(branch_charts(branches)),
            note(
                "a is what a branch adds to the state x, and the angle lies between x and x + a. "
                + _OVER
            ),
        ]
    charts = [] if theory is None else theory_charts(theory)
    if charts:
        blocks += [
            heading("The theory beside the measurement"),
            curves(charts),
            note(_OVER),
        ]
    if theory is not None and assumptions is not None:
        blocks += [
            heading("Does the paper's theory hold here?"),
            sentence(theory_verdict(theory, assumptions)),
            shown(assumptions[_VERDICT_FIRST]),
            note(LEGEND),
        ]
    return blocks
