"""How a run of ``layers`` is shown: on a terminal, and on the page."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup
from numpy.typing import NDArray
from rich.console import Console

from normprobe.measurements.layers import branches, massive, turns
from normprobe.measurements.layers.accounted import ARITHMETIC
from normprobe.measurements.layers.assumptions import (
    ASSUMPTIONS_LEGEND,
    print_assumptions,
    theory_findings,
)
from normprobe.measurements.layers.figures import (
    ACCOUNTED,
    METRICS,
    THEORY,
    by_layer,
    own_panels,
    story,
)
from normprobe.measurements.layers.headroom import headroom_section
from normprobe.report.charts import GROUPS, Panel, charts
from normprobe.report.figures.style import asks_for_log
from normprobe.report.page.blocks import block, curves, heading, note, side_by_side, verdict_block
from normprobe.report.page.blocks import shown_table as shown
from normprobe.report.readable import MISSING, significant
from normprobe.report.sentences import other_media
from normprobe.report.terminal import (
    ALIGNED,
    NumberColumn,
    print_by_layer,
    print_notes,
    print_verdict,
)
from normprobe.report.verdict import verdict_of
from normprobe.runs.run_folder import RunStore
from normprobe.schema import MODALITIES, TEXT, TOKEN_GROUPS, VISUAL
from normprobe.tidy import BAND, wide

#: Metrics of the table and the heat map: header, word, quantity.
_METRICS = (
    ("norm", "norm", "norm"),
    ("cosine", "cosine", "cosine"),
    ("angle", "angle", "angle"),
    ("rel.update", "update", "relative_update"),
)
_NOTES = (
    "Means over tokens of the L2 norm after the layer (layer 0: decoder input);",
    "of cosine and angle (radians per layer) between layer input x and output h;",
    "and of the relative update |h - x| / |x|.",
)


def _cosine(value: float) -> str:
    return MISSING if math.isnan(value) else f"{value:.4f}"


# --- on a terminal -------------------------------------------------------------------------------


def show(run: RunStore, console: Console) -> None:
    """Print the layers, then what else was asked for."""
    aligned = ALIGNED * ("alignment" in run.record)
    layers = run.table("layers")
    print_by_layer(
        "Decoder layers" + aligned, layers, _columns(layers), console, _NOTES, "layers.csv"
    )
    if run.has_table("images"):
        print_notes(console, "images.csv: each image of the samples that have several.")
    for part in _PARTS:
        rows = run.rows_of(part.table)
        if rows is not None and (columns := part.columns(rows)):
            file = f"{part.table}.csv"
            print_by_layer(part.printed + aligned, rows, columns, console, part.notes(rows), file)
    for name, facts in run.record.get("own_numbers", {}).items():
        groups = [VISUAL] if facts["per"] == "pair" else _groups(layers)
        columns = [NumberColumn((g,), name, {"group": g}) for g in groups]
        told = f"{facts['words'][:1].upper()}{facts['words'][1:]}: mean ({facts['unit']})."
        print_by_layer(name + aligned, layers, columns, console, [told], "layers.csv")


def show_theory(run: RunStore, console: Console) -> None:
    """Print the assumptions of the theory, and which of them hold."""
    assumptions = run.table("assumptions")
    print_assumptions(assumptions, console)
    print_verdict(verdict_of("", theory_findings(assumptions)), console)


def _groups(layers: pd.DataFrame) -> list[str]:
    """Visual beside text, or whichever groups exist; and images, videos and sounds."""
    present = [group for group in (VISUAL, TEXT, *TOKEN_GROUPS) if (layers["group"] == group).any()]
    others = other_media(layers)
    pair = list(dict.fromkeys(present))[:2]
    return [group for group in pair if not others or group in MODALITIES] + others


def _columns(layers: pd.DataFrame) -> list[NumberColumn]:
    return [
        _column(header, group, quantity)
        for header, _, quantity in _METRICS
        for group in _groups(layers)
    ]


def _column(header: str, group: str, quantity: str) -> NumberColumn:
    doubted = "angle_below_resolution" if quantity == "angle" else ""
    written = _cosine if quantity == "cosine" else significant
    return NumberColumn((header, group), quantity, {"group": group}, written, doubted=doubted)


# --- on the page ---------------------------------------------------------------------------------


def lead(run: RunStore) -> Markup:
    """Norms and turning by layer."""
    layers = run.rows_of("layers")
    drawn = [] if layers is None else charts(story(layers), layers)
    return side_by_side(drawn) + note(_lines(run)) if drawn else Markup()


def _over(run: RunStore) -> str:
    """What intervals and bands are drawn over: images, or prompts where none has one."""
    pictures = run.record.get("image_hashes") or {"": ""}
    units = "images" if any(each is not None for each in pictures.values()) else "prompts"
    return f"Intervals and bands are over {units}."


def _lines(run: RunStore) -> str:
    return f"Lines: means over tokens. {_over(run)} Layer 0: decoder input."


def section(run: RunStore) -> list[Markup]:
    """Curves, layer by layer as a heat map, and the theory beside the measurement."""
    layers = run.rows_of("layers")
    if layers is None:
        return []
    blocks = [
        lead(run),
        heading("Through the decoder"),
        curves(charts([*METRICS, *own_panels(run)], layers)),
        note(_lines(run)),
        heading("Layer by layer"),
        _heat_map(layers),
        note(
            "Darker is larger, within one metric; a metric with a wide range is shaded by its "
            "logarithm. angle: radians per layer. update: |h - x| / |x|."
        ),
    ]
    for part in _PARTS:
        rows = run.rows_of(part.table)
        drawn = [] if rows is None else charts(part.panels, part.rows_of(rows))
        if drawn:
            blocks += [
                heading(part.title),
                curves(drawn),
                note(f"{part.legend} {_over(run)}"),
            ]
    blocks += headroom_section(run)
    assumptions = run.rows_of("assumptions")
    if assumptions is not None:
        blocks += [
            heading("Does the paper's theory hold here?"),
            verdict_block(verdict_of("", theory_findings(assumptions))),
            shown(assumptions[_VERDICT_FIRST]),
            note(ASSUMPTIONS_LEGEND),
        ]
    return blocks


class _Part(NamedTuple):
    """What is shown of a table beside ``layers.csv``, on the page and in print."""

    table: str
    title: str  # on the page, as what is below
    panels: Sequence[Panel]
    legend: str = ""
    rows_of: Callable[[pd.DataFrame], pd.DataFrame] = lambda table: table
    printed: str = ""  # its title on a terminal, as what is below
    columns: Callable[[pd.DataFrame], Sequence[NumberColumn]] = lambda _: ()
    notes: Callable[[pd.DataFrame], Sequence[str]] = lambda _: ()


_PARTS = (
    _Part(
        "massive",
        "Massive activations",
        massive.MASSIVE_PANELS,
        f"{massive.MASSIVE} {massive.WITHOUT_MASSIVE} {massive.KINDS_LEGEND}",
        printed="Massive activations",
        columns=lambda _: massive.COLUMNS,
        notes=lambda table: [massive.terminal_legend(table)],
    ),
    _Part(
        "accounted",
        "What accounts for it in Eq. 13",
        ACCOUNTED,
        f"Parts by Eq. 13 add up to the logarithm. {ARITHMETIC}",
        rows_of=by_layer,
    ),
    _Part(
        "branches",
        "Attention and MLP, each by itself",
        branches.BRANCH_PANELS,
        "a is what a branch adds to the state x, and the angle lies between x and x + a.",
        printed="Branches",
        columns=branches.columns,
        notes=lambda _: branches.NOTES,
    ),
    _Part(
        "turns",
        "Turn by turn",
        turns.TURN_PANELS,
        "Geometric means over samples, each beside its own first turn.",
        printed="Visual tokens of each turn",
        columns=turns.turn_columns,
        notes=lambda _: turns.NOTES,
    ),
    _Part("theory", "The theory beside the measurement", THEORY),
)

#: Columns of ``assumptions.csv`` in an order that a narrow screen can cut off.
_VERDICT_FIRST = ["assumption", "source", "number", "verdict", "range_low", "range_high", "worst"]
_VERDICT_FIRST += [*BAND, "worst_layer", "median", "holds_in", "fails_in", "open_in", "exempt_in"]


def _heat_map(layers: pd.DataFrame) -> Markup:
    """Layers down, metrics and groups across, each cell shaded by its place in the metric."""
    groups = [group for group in reversed(GROUPS) if (layers["group"] == group).any()]
    numbers = wide(layers)
    metrics = [(metric, word) for _, word, metric in _METRICS if metric in numbers]
    tables = {
        metric: numbers.pivot(index="layer", columns="group", values=metric)[groups]
        for metric, _ in metrics
    }
    shades = {metric: _shades(table.to_numpy(float)) for metric, table in tables.items()}
    rows = [
        (
            int(layer),
            [
                _cell(float(value), float(shade), metric)
                for metric, _ in metrics
                for value, shade in zip(
                    tables[metric].loc[layer], shades[metric][place], strict=True
                )
            ],
        )
        for place, layer in enumerate(sorted(layers["layer"].unique()))
    ]
    return block("shaded", "layer", [word for _, word in metrics], groups, rows)


def _shades(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """0 to 1 over the finite values of a metric, by their logarithm where they span much."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return values
    if finite.min() > 0 and asks_for_log(finite):
        values, finite = np.log(values), np.log(finite)
    shades: NDArray[np.float64] = (values - finite.min()) / (np.ptp(finite) or 1.0)
    return shades


def _cell(value: float, shade: float, metric: str) -> tuple[str, float | None]:
    """A number and its shade, none where there is no number."""
    if not math.isfinite(value):
        return MISSING, None
    return (_cosine if metric == "cosine" else significant)(value), shade
