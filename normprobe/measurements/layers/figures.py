"""What is drawn of ``layers``: panels as data, and the figures that are truly their own."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from normprobe.measurements.layers import branches, massive
from normprobe.measurements.layers.accounted import LOG_PARTS, ONE_LAYER
from normprobe.measurements.layers.turns import TURN_PANELS
from normprobe.report.charts import (
    PLAIN,
    Curve,
    Panel,
    by_group,
    draw_panel,
    draw_panels,
    drawn_rows,
    metric_panel,
)
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import INTERVAL_WORDS, Given, draw_estimate, ends_drawn, panels
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    GROUP_LOOKS,
    GroupLook,
    log_or_from_zero,
    mark_layers,
)
from normprobe.runs.run_folder import RunStore
from normprobe.schema import ATTENTION_INPUT, OTHER_MEDIA, SPECIAL, TEXT, VISUAL
from normprobe.tidy import INTERVAL, QUANTITY, select, wide

# --- layers.csv ----------------------------------------------------------------------------------

METRICS = (
    metric_panel("norm", "L2 norm of the hidden state"),
    metric_panel("cosine", "cosine between layer input and output", "cosine"),
    metric_panel("angle", "angular velocity (radians per layer)", doubted="angle_below_resolution"),
    metric_panel("relative_update", "relative update |h - x| / |x|"),
    metric_panel("update_norm", "L2 norm of the update"),
    metric_panel("update_angle", "angle between update and layer input (radians)"),
    metric_panel("attention_input_norm", "L2 norm of what attention reads"),
    metric_panel("pooled_cosine", "cosine of the group's mean vectors", "cosine"),
    metric_panel("within_modal_cosine", "mean cosine over pairs within the group", "cosine"),
)


def story(layers: pd.DataFrame) -> list[Panel]:
    """What the first screen of a page shows: visual beside text tokens, or special ones."""
    groups = (*OTHER_MEDIA, TEXT, VISUAL) if (layers["group"] == VISUAL).any() else (TEXT, SPECIAL)
    titles = {"norm": "L2 norm", "angle": "Angle per layer (radians)"}
    return [metric_panel(metric, title, groups=groups) for metric, title in titles.items()]


def own_panels(run: RunStore) -> list[Panel]:
    """A panel for each number of the user's own."""
    return [
        Panel(f"{facts['words']} ({facts['unit']})", by_group(name), "signed")
        for name, facts in run.record.get("own_numbers", {}).items()
    ]


# --- theory.csv ----------------------------------------------------------------------------------


def _one(title: str, quantity: str, scale: Any = "signed") -> Panel:
    return Panel(title, (Curve(title, quantity, PLAIN[0]),), scale, quantity)


def _each(title: str, quantity: str) -> Panel:
    return Panel(title, by_group(quantity, (VISUAL, TEXT)), "signed", quantity)


#: Mean cosines over all (visual, text) pairs, where they are and where attention reads them.
CROSSED = Panel(
    "mean cosine, visual-text pairs",
    (
        Curve("states", "cross_modal_cosine", PLAIN[0]),
        Curve("common mean out", "centered_cross_modal_cosine", PLAIN[1]),
        Curve("attention input", "attention_input_cosine", PLAIN[2]),
    ),
    "signed",
)

#: In the order of assumptions.csv; the last is not judged.
THEORY = (
    _one("visual / text norm", "norm_ratio", "ratio"),
    _one("visual / text |D|", "update_norm_ratio", "ratio"),
    _each("spread of |D|", "update_norm_cv"),
    _each("correlation of log |D|, log |x|", "update_norm_correlation"),
    _one("phi, visual - text (rad)", "update_angle_difference"),
    _each("spread of phi (rad)", "update_angle_std"),
    Panel(
        "mean cosine over pairs",
        (
            Curve("visual turn, text state", "visual_turn_to_text", GROUP_LOOKS[VISUAL]),
            Curve("text turn, visual state", "text_turn_to_visual", GROUP_LOOKS[TEXT]),
            Curve("visual turn, text turn", "turn_to_turn", PLAIN[0]),
        ),
        "signed",
        "visual_turn_to_text",
    ),
    _each("correlation of log angle, log |x|", "norm_angle_correlation"),
    _one("angle ratio, miss (Eq. 13)", "angle_ratio_error", "ratio"),
    Panel(
        "cross-modal cosine",
        (
            Curve("Eq. 15 from layer 0 on", "compounded_cross_modal_cosine", PLAIN[2]),
            Curve("Eq. 15, one layer on", "predicted_cross_modal_cosine", PLAIN[1]),
            Curve("measured", "cross_modal_cosine", PLAIN[0]),
        ),
        "signed",
    ),
    _one("measured - predicted (Eq. 15)", "cosine_residual"),
    CROSSED,
)


def draw_theory(
    title: str, theory: pd.DataFrame, assumptions: pd.DataFrame, ax: Given = None
) -> Figure:
    """A panel a number over the decoder layers; yellow is the range in which it holds."""
    ends = assumptions.drop_duplicates(QUANTITY).set_index(QUANTITY)[["range_low", "range_high"]]
    ranges = {str(quantity): (low, high) for quantity, low, high in ends.astype(float).itertuples()}
    return draw_panels(title, THEORY, theory, ax, columns=3, height=1.75, ranges=ranges)


# --- accounted.csv -------------------------------------------------------------------------------

#: Words and colours of the parts, dark to light; none is a token group's.
PART_WORDS = dict(zip(LOG_PARTS, ("norms", "update sizes", "update angles", "rest"), strict=True))
_PART_COLORS = dict(zip(LOG_PARTS, ("#332288", "#44AA99", "#DDCC77", "#BBBBBB"), strict=True))
ACCOUNTED = (
    Panel(
        "parts of log(text angle / visual angle)",
        tuple(
            Curve(PART_WORDS[part], f"log_{part}", GroupLook(_PART_COLORS[part], "o", "-"))
            for part in reversed(LOG_PARTS)
        ),
        "signed",
    ),
    Panel(
        "angular velocity (radians per layer)",
        (
            Curve("visual", "visual_angle", GROUP_LOOKS[VISUAL]),
            Curve(
                "visual, at the text's norm (Eq. 13)",
                "visual_angle_at_text_norm",
                GROUP_LOOKS[VISUAL]._replace(linestyle=":", marker="^"),
            ),
            Curve("text", "text_angle", GROUP_LOOKS[TEXT]),
        ),
    ),
)
_FEW = 5  # ticks


def by_layer(accounted: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``accounted.csv`` that are of one layer, with its number."""
    rows = accounted[accounted["scope"] == ONE_LAYER].copy()
    rows.insert(0, "layer", rows["layers"].astype(int))
    return rows


def draw_accounted(title: str, accounted: pd.DataFrame, ax: Given = None) -> Figure:
    """The parts of the ratio of angles by layer, and the angle that visual tokens would have."""
    rows = by_layer(accounted)
    drawing, grid = panels(title, DOUBLE_WIDTH, 3.0, (1, 2), ax)
    parts, angles = grid[0]
    _draw_parts(parts, rows)
    draw_panel(angles, ACCOUNTED[1], rows, int(rows["layer"].max()))
    several = rows["layer"].nunique() > 1
    angles.set_xlim(0.7 if several else 0.3, rows["layer"].max() + 0.3)
    parts.set_title("(a) text angle / visual angle, by part", loc="left")
    angles.set_title(f"(b) {ACCOUNTED[1].title}", loc="left")
    for axes, columns in ((parts, 2), (angles, 1)):
        _legend_under(axes, columns, 7)
    return drawing


def _legend_under(axes: Axes, columns: int, size: float) -> None:
    handles = [*axes.get_legend_handles_labels()[0], *ends_drawn([axes])]
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2)}
    axes.legend(handles=handles, ncols=columns, fontsize=size, columnspacing=1, **place)


def _draw_parts(axes: Axes, rows: pd.DataFrame) -> None:
    """Logarithms, which add up, as bars on each other; the axis names the ratios."""
    numbers = wide(rows)
    above, below = np.zeros(len(numbers)), np.zeros(len(numbers))
    for part, word in PART_WORDS.items():
        values = numbers[f"log_{part}"].fillna(0.0).to_numpy()
        start = np.where(values >= 0, above, below)
        axes.bar(numbers["layer"], values, 0.8, start, color=_PART_COLORS[part], label=word)
        above, below = above + values.clip(min=0), below + values.clip(max=0)
    ratios = select(rows, "angle_ratio")
    measured, *ends = np.log(ratios[["mean", *INTERVAL]].to_numpy(float)).T
    away = [np.nan_to_num(end).clip(min=0) for end in (measured - ends[0], ends[1] - measured)]
    axes.errorbar(
        ratios["layer"],
        measured,
        away,
        fmt="D",
        markersize=3,
        color="black",
        elinewidth=0.8,
        label=f"measured, {INTERVAL_WORDS}",
    )
    axes.axhline(0.0, color="black", linewidth=0.6)
    mark_layers(axes, int(rows["layer"].max()))
    axes.set_xlim(0.3, rows["layer"].max() + 0.7)
    named = _named_ratios(*np.exp(axes.get_ylim()))
    axes.set_yticks(np.log(named), [f"{ratio:g} x" for ratio in named])


def _named_ratios(lowest: float, highest: float) -> NDArray[np.float64]:
    """Round ratios between two, as few as tell the scale."""
    decades = range(math.floor(np.log10(lowest)), math.ceil(np.log10(highest)) + 1)
    for named in ((1,), (1, 2, 5)):
        ratios = np.array([digit * 10.0**decade for decade in decades for digit in named])
        ratios = ratios[(ratios >= lowest) & (ratios <= highest)]
        if len(ratios) >= 3:
            return ratios
    even = np.array(MaxNLocator(_FEW, steps=[1, 2, 5, 10]).tick_values(lowest, highest))
    return even[(even >= lowest) & (even <= highest)]


# --- what attention reads, and where tokens point -------------------------------------------------


def draw_directions(
    title: str, theory: pd.DataFrame, layers: pd.DataFrame, ax: Given = None
) -> Figure:
    """Norms of the residual and of what attention reads; mean cosines within and across groups."""
    drawing, grid = panels(title, DOUBLE_WIDTH, 3.2, (1, 2), ax)
    norms, cosines = grid[0]
    norms.set_title("(a) L2 norm, and where attention reads", loc="left")
    cosines.set_title("(b) mean cosine over pairs of tokens", loc="left")
    for group in (TEXT, VISUAL):
        look = GROUP_LOOKS[group]
        for axes, quantity, line, name in (
            (norms, "norm", look._replace(linestyle="-"), group),
            (norms, ATTENTION_INPUT, look._replace(linestyle=":"), f"{group}, attention input"),
            (cosines, "within_modal_cosine", look, f"within {group}"),
        ):
            draw_estimate(axes, drawn_rows(layers, quantity, {"group": group}), "mean", line, name)
    for curve in CROSSED.curves:
        name = f"visual, text: {curve.name}"
        draw_estimate(cosines, curve.rows(theory), curve.estimate, curve.look, name)
    drawn = layers[layers["group"].isin([VISUAL, TEXT])]
    read = drawn[drawn[QUANTITY].isin(["norm", ATTENTION_INPUT])]
    log_or_from_zero(norms, read["mean"].to_numpy(float))
    cosines.axhline(0.0, color="black", linewidth=0.6, zorder=1)
    for axes in (norms, cosines):
        mark_layers(axes, int(layers["layer"].max()))
        _legend_under(axes, 2, 6.5)
    return drawing


# --- all of them ---------------------------------------------------------------------------------


def _declared(
    name: str, table: str, shown: Sequence[Panel], columns: int, height: float, **more: Any
) -> Drawing:
    def draw(title: str, rows: pd.DataFrame, ax: Given = None) -> Figure:
        held = [panel for panel in shown if panel.values(rows).size] or shown
        return draw_panels(title, held, rows, ax, columns=columns, height=height, **more)

    return Drawing(name, (table,), draw)


def drawings(run: RunStore) -> list[Drawing]:
    """The figures of a run."""
    own = own_panels(run)
    return [
        _declared("layers", "layers", METRICS[:2], 2, 2.1),
        _declared("turning", "layers", METRICS[2:4], 2, 2.1),
        Drawing("accounted", ("accounted",), draw_accounted),
        Drawing("directions", ("theory", "layers"), draw_directions),
        _declared(
            "branches", "branches", branches.BRANCH_PANELS, 3, 2.0, legend=branches.BRANCH_KEYS
        ),
        _declared("massive", "massive", massive.MASSIVE_PANELS, 3, 1.9),
        _declared("turns", "turns", TURN_PANELS, 2, 2.1),
        Drawing("theory", ("theory", "assumptions"), draw_theory),
        *([_declared("own", "layers", own, min(3, len(own)), 2.1)] if own else []),
    ]
