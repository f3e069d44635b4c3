"""The section of the page that shows a run of ``layers``."""

from normprobe.measurements.layers.branches.words import branches_verdict
from normprobe.measurements.layers.charts import (
    branch_charts,
    explained_charts,
    layer_charts,
    massive_charts,
    theory_charts,
)
from normprobe.measurements.layers.explained.words import explained_verdict
from normprobe.measurements.layers.heat_map import heat_map
from normprobe.measurements.layers.massive.words import KINDS, MASSIVE
from normprobe.measurements.layers.theory.words import LEGEND, theory_verdict
from normprobe.measurements.layers.words import massive_words, run_verdict
from normprobe.report.page.blocks import curves, heading, note, sentence
from normprobe.report.page.markup import Markup
from normprobe.report.page.tables import table as shown
from normprobe.runs.run_store import RunStore

#: Columns of ``assumptions.csv`` in an order that a narrow screen can cut off.
_VERDICT_FIRST = ["assumption", "source", "number", "verdict", "low", "high", "worst"]
_VERDICT_FIRST += ["worst_ci_low", "worst_ci_high", "worst_layer", "median"]
_VERDICT_FIRST += ["holds_in", "fails_in", "open_in", "exempt_in"]


def section(run: RunStore) -> list[Markup]:
    """Curves, layer by layer as a heat map, and the theory beside the measurement."""
    layers, theory = run.rows_of("layers"), run.rows_of("theory")
    assumptions = run.rows_of("assumptions")
    if layers is None:
        return []
    blocks = [
        sentence(run_verdict(run)),
        heading("Through the decoder"),
        curves(layer_charts(layers)),
        note("Lines: means over tokens. Bands: 5-95 % of tokens. Layer 0: decoder input."),
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
            note(f"{MASSIVE} {KINDS} Bands: 95 % intervals over images."),
        ]
    explained = run.rows_of("explained")
    if explained is not None:
        blocks += [
            heading("Why visual tokens turn at another rate"),
            sentence(explained_verdict(explained)),
            curves(explained_charts(explained)),
            note("Parts by Eq. 13 add up to the logarithm. Bands: 95 % intervals over images."),
        ]
    branches = run.rows_of("branches")
    if branches is not None:
        blocks += [
            heading("Attention and MLP, each by itself"),
            sentence(branches_verdict(branches)),
            curves(branch_charts(branches)),
            note(
                "a is what a branch adds to the state x, and the angle lies between x and x + a. "
                "Bands: 95 % intervals over images."
            ),
        ]
    charts = [] if theory is None else theory_charts(theory)
    if charts:
        blocks += [
            heading("The theory beside the measurement"),
            curves(charts),
            note("Bands: 95 % intervals over images."),
        ]
    if theory is not None and assumptions is not None:
        blocks += [
            heading("Does the paper's theory hold here?"),
            sentence(theory_verdict(theory, assumptions)),
            shown(assumptions[_VERDICT_FIRST]),
            note(LEGEND),
        ]
    return blocks
