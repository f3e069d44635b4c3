"""How a run of ``layers`` is shown: on a terminal, and on the page."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console

from normprobe.measurements.layers import branches, massive, turns
from normprobe.measurements.layers.accounted import ARITHMETIC, accounted_verdict
from normprobe.measurements.layers.assumptions import (
    ASSUMPTIONS_LEGEND,
    print_assumptions,
    theory_verdict,
)
from normprobe.measurements.layers.figures import (
    ACCOUNTED,
    METRICS,
    THEORY,
    by_layer,
    own_panels,
    story,
)
from normprobe.measurements.layers.words import (
    attention_input_verdict,
    layers_verdict,
    massive_words,
    placement_sentence,
    run_verdict,
)
from normprobe.report.charts import GROUPS, Panel, charts
from normprobe.report.figures.style import asks_for_log
from normprobe.report.page.blocks import curves, heading, note, sentence, side_by_side
from normprobe.report.page.blocks import shown_table as shown
from normprobe.report.page.markup import Markup, block
from normprobe.report.readable import MISSING, significant
from normprobe.report.sentences import broken_states_sentence, other_media
from normprobe.report.terminal import (
    ALIGNED,
    NumberColumn,
    print_by_layer,
    print_notes,
    print_sentence,
)
from normprobe.runs.run_folder import RunStore
from normprobe.schema import MODALITIES, TEXT, TOKEN_GROUPS, VISUAL

#: Metrics of the table and the heat map: header, word, column.
_METRICS = (
    ("norm", "norm", "norm_mean"),
    ("cosine", "cosine", "cosine_mean"),
    ("angle", "angle", "angle_mean"),
    ("rel.update", "update", "relative_update_mean"),
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
    """Print the layers, then what else was asked for, each with what it says."""
    aligned = ALIGNED * ("alignment" in run.record)
    layers = run.table("layers")
    print_by_layer(
        "Decoder layers" + aligned, layers, _columns(layers), console, _NOTES, "layers.csv"
    )
    print_sentence(run_verdict(run), console)
    if run.has_table("accounted") and accounted_verdict(run.table("accounted")):
        print_notes(console, ARITHMETIC)
    if run.has_table("images"):
        print_notes(console, "images.csv: each image of the samples that have several.")
    if run.has_table("branches"):
        of_branches = run.table("branches")
        columns = branches.columns(of_branches)
        print_by_layer(
            "Branches" + aligned, of_branches, columns, console, branches.NOTES, "branches.csv"
        )
        print_sentence(branches.branches_verdict(of_branches), console)
    if run.has_table("massive"):
        table = run.table("massive")
        legend = [massive.terminal_legend(table)]
        print_by_layer(
            "Massive activations", table, massive.COLUMNS, console, legend, "massive.csv"
        )
        print_sentence(massive_words(run), console)
    if run.has_table("turns"):
        of_turns = run.table("turns")
        columns = turns.turn_columns(of_turns)
        title = "Visual tokens of each turn" + aligned
        print_by_layer(title, of_turns, columns, console, turns.NOTES, "turns.csv")
        print_sentence(turns.turns_verdict(of_turns), console)
    for name, facts in run.record.get("own_numbers", {}).items():
        groups = [VISUAL] if facts["per"] == "pair" else _groups(layers)
        columns = [NumberColumn((g,), f"{name}_mean", {"group": g}) for g in groups]
        told = f"{facts['words'][:1].upper()}{facts['words'][1:]}: mean ({facts['unit']})."
        print_by_layer(name + aligned, layers, columns, console, [told], "layers.csv")


def show_theory(run: RunStore, console: Console) -> None:
    """Print the assumptions of the theory, and which of them hold."""
    assumptions = run.table("assumptions")
    print_assumptions(assumptions, console)
    print_sentence(theory_verdict(assumptions), console)


def _groups(layers: pd.DataFrame) -> list[str]:
    """Visual beside text, or whichever groups exist; and images, videos and sounds."""
    present = [group for group in (VISUAL, TEXT, *TOKEN_GROUPS) if (layers["group"] == group).any()]
    others = other_media(layers)
    pair = list(dict.fromkeys(present))[:2]
    return [group for group in pair if not others or group in MODALITIES] + others


def _columns(layers: pd.DataFrame) -> list[NumberColumn]:
    return [
        _column(header, group, column)
        for header, _, column in _METRICS
        for group in _groups(layers)
    ]


def _column(header: str, group: str, column: str) -> NumberColumn:
    doubted = "angle_below_resolution" if column == "angle_mean" else ""
    written = _cosine if column == "cosine_mean" else significant
    return NumberColumn((header, group), column, {"group": group}, written, doubted)


# --- on the page ---------------------------------------------------------------------------------


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
        sentence(headline(run)),
        lead(run),
        sentence(attention_input_verdict(layers)),
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
    for title, name, rows_of, declared, said, legend in _PARTS:
        rows = run.rows_of(name)
        drawn = [] if rows is None else charts(declared, rows_of(rows))
        if drawn:
            blocks += [
                heading(title),
                sentence(said(run)),
                curves(drawn),
                note(f"{legend} {_over(run)}"),
            ]
    assumptions = run.rows_of("assumptions")
    if assumptions is not None:
        blocks += [
            heading("Does the paper's theory hold here?"),
            sentence(theory_verdict(assumptions)),
            shown(assumptions[_VERDICT_FIRST]),
            note(ASSUMPTIONS_LEGEND),
        ]
    return blocks


class _Part(NamedTuple):
    """What a section shows of a table beside ``layers.csv``."""

    title: str
    table: str
    rows_of: Callable[[pd.DataFrame], pd.DataFrame]
    declared: Sequence[Panel]
    said: Callable[[RunStore], str]
    legend: str


def _as_it_is(table: pd.DataFrame) -> pd.DataFrame:
    return table


_PARTS = (
    _Part(
        "Massive activations",
        "massive",
        _as_it_is,
        massive.MASSIVE_PANELS,
        massive_words,
        f"{massive.MASSIVE} {massive.WITHOUT_MASSIVE} {massive.KINDS_LEGEND}",
    ),
    _Part(
        "What accounts for it in Eq. 13",
        "accounted",
        by_layer,
        ACCOUNTED,
        lambda run: accounted_verdict(run.table("accounted")),
        f"Parts by Eq. 13 add up to the logarithm. {ARITHMETIC}",
    ),
    _Part(
        "Attention and MLP, each by itself",
        "branches",
        _as_it_is,
        branches.BRANCH_PANELS,
        lambda run: branches.branches_verdict(run.table("branches")),
        "a is what a branch adds to the state x, and the angle lies between x and x + a.",
    ),
    _Part(
        "Turn by turn",
        "turns",
        _as_it_is,
        turns.TURN_PANELS,
        lambda run: turns.turns_verdict(run.table("turns")),
        "Geometric means over samples, each beside its own first turn.",
    ),
    _Part(
        "The theory beside the measurement",
        "theory",
        _as_it_is,
        THEORY,
        lambda run: "",
        "",
    ),
)

#: Columns of ``assumptions.csv`` in an order that a narrow screen can cut off.
_VERDICT_FIRST = ["assumption", "source", "number", "verdict", "low", "high", "worst"]
_VERDICT_FIRST += ["worst_band_low", "worst_band_high", "worst_layer", "median"]
_VERDICT_FIRST += ["holds_in", "fails_in", "open_in", "exempt_in"]


def _heat_map(layers: pd.DataFrame) -> Markup:
    """Layers down, metrics and groups across, each cell shaded by its place in the metric."""
    groups = [group for group in reversed(GROUPS) if (layers["group"] == group).any()]
    metrics = [(column, word) for _, word, column in _METRICS if column in layers]
    tables = {
        column: layers.pivot(index="layer", columns="group", values=column)[groups]
        for column, _ in metrics
    }
    shades = {column: _shades(table.to_numpy(float)) for column, table in tables.items()}
    rows = [
        (
            int(layer),
            [
                _cell(float(value), float(shade), column)
                for column, _ in metrics
                for value, shade in zip(
                    tables[column].loc[layer], shades[column][place], strict=True
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


def _cell(value: float, shade: float, column: str) -> tuple[str, float | None]:
    """A number and its shade, none where there is no number."""
    if not math.isfinite(value):
        return MISSING, None
    return (_cosine if column == "cosine_mean" else significant)(value), shade
