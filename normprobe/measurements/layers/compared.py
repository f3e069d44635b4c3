"""Runs of ``layers`` side by side: what ranks them, and how they are shown."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from normprobe.measurements.layers.figures import METRICS
from normprobe.report.charts import (
    SPREAD,
    Chart,
    Curve,
    chart,
    charts,
    draw_panel,
    drawn_rows,
    handles_of,
    limit_cosine,
    series_of,
)
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given, draw_line, legend_below, panels
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    GROUP_LOOKS,
    drawable,
    log_or_from_zero,
    mark_layers,
    series_look,
    shortened,
)
from normprobe.report.page.blocks import curves, heading, note, side_by_side
from normprobe.report.ranked import series_colors
from normprobe.report.ranking import ATTENDED, DISPARITY
from normprobe.report.ratio_words import Estimate, Ratio, ratio_after, visual_states_are_attended
from normprobe.schema import GEOMETRIC_RATIOS, OTHER_MEDIA, TEXT, VISUAL
from normprobe.statistics.bootstrap import LINEAR, interval
from normprobe.statistics.resampling import Resampled
from normprobe.tidy import BAND, INTERVAL, select

#: Header and quantity of each number of the ranking.
COLUMNS = {
    "input": "disparity_input",
    "middle": "disparity_middle",
    "last": "disparity_last",
    "inertia gap": "inertia_gap",
}
NOTES = (
    "input, middle, last: visual / text, ratio of geometric mean norms at the input,",
    "after layer ceil(N / 2) and after the last. inertia gap: text - visual angle,",
    "mean over layers (radians per layer). Ranked by |log ratio| at the input.",
)
#: The first of them, in words.
RANKED = "visual / text norm at the decoder input"
#: What the intervals need of the sample rows.
ROW_COLUMNS = ("sample_id", "image_hash", "layer", "group", "tokens", "angle_mean", "angle_tokens")


def drawings(compare: pd.DataFrame) -> list[Drawing]:
    """The figures of ``compare.csv``; with a column ``step`` the runs are one training."""
    small = Drawing("small_multiples", ("compare",), draw_small_multiples)
    if "step" in compare:
        return [Drawing("training", ("compare",), draw_training), small]
    return [small, Drawing("overlay", ("compare",), draw_overlay)]


def section(compare: pd.DataFrame) -> list[Markup]:
    """What the page shows of ``compare.csv``."""
    return [
        heading("Through the decoder"),
        curves(run_charts(compare)),
        note("Means over tokens. Full lines: visual tokens; dashed: text tokens."),
    ]


def lead(compare: pd.DataFrame) -> Markup:
    """Under the ranking on the first screen: the ratios through the decoder."""
    drawn = ratio_charts(compare)
    said = (
        "Lines: visual / text, geometric means; shades: 95 % intervals of each layer over images."
    )
    return side_by_side(drawn) + note(said) if drawn else Markup()


def measures(layers: pd.DataFrame, rows: pd.DataFrame | None = None) -> dict[str, Estimate]:
    """Disparity and inertia of one run, each with its 95 % interval where it has one."""
    last = int(layers["layer"].max())
    places = {"input": 0, "middle": -(-last // 2), "last": last}
    measured: dict[str, Estimate] = {
        f"disparity_{name}": ratio_after(layers, place) for name, place in places.items()
    }
    if visual_states_are_attended(layers):
        measured |= {DISPARITY: Ratio(math.nan), ATTENDED: measured[DISPARITY]}
    measured["inertia_gap"] = _inertia_gap(layers, rows)
    others = {f"disparity_{g}": ratio_after(layers, 0, group=g) for g in OTHER_MEDIA}
    return measured | {name: ratio for name, ratio in others.items() if ratio.usable}


def _inertia_gap(layers: pd.DataFrame, rows: pd.DataFrame | None) -> Estimate:
    """Text minus visual angle, mean over the layers that have both."""
    angles = select(layers, "angle")
    angles = angles[angles["layer"] > 0].reset_index(drop=True)
    places = (
        angles[["layer", "group"]]
        .assign(place=angles.index)
        .pivot(index="layer", columns="group", values="place")
        .reindex(columns=[VISUAL, TEXT])
        .dropna()
        .astype(int)
    )

    def gaps(values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of each draw, ``[draws, angles]``."""
        by_layer = pd.DataFrame(values[:, places[TEXT]] - values[:, places[VISUAL]])
        return by_layer.mean(axis=1).to_numpy()

    (gap,) = gaps(angles[["mean"]].to_numpy(np.float64).T)
    if rows is None or rows.empty:
        return Estimate(float(gap))
    resampled = Resampled(angles, rows, ["layer", "group"])
    drawn = gaps(resampled.means("angle_mean", by_tokens=True))[:, None]
    images = resampled.held[:, places[VISUAL]].any(axis=1).sum(keepdims=True)
    return Estimate(float(gap), *interval(drawn, resampled.units, LINEAR, images)[:, 0].tolist())


# --- figures -------------------------------------------------------------------------------------

_COLUMNS = 4
_LETTERS = 88  # of all names of a row
_RATIOS = (
    "Lines: visual / text tokens, ratio of geometric means; shades: 95 % intervals of each layer "
    "over images."
)
_TURNING = "Angle per layer: visual / text"
_COSINE = next(panel for panel in METRICS if panel.scale == "cosine")


def run_charts(compare: pd.DataFrame) -> list[Chart]:
    """``compare.csv`` for the page: a colour a run; of one training, they follow the step."""
    # The means alone: intervals of so many lines would lie over each other.
    means = compare.drop(columns=[*INTERVAL, *BAND, *SPREAD], errors="ignore")
    panels_of_runs = [
        replace(
            panel,
            curves=[
                Curve(
                    f"{run}, {group}",
                    panel.curves[0].quantity,
                    GROUP_LOOKS[group]._replace(color=color),
                    {"run": run, "group": group},
                )
                for run, color in reversed(series_colors(compare).items())
                for group in (TEXT, VISUAL)
            ],
        )
        for panel in METRICS
    ]
    return charts(panels_of_runs, means)


def ratio_charts(compare: pd.DataFrame) -> list[Chart]:
    """Visual over text tokens, a line a run: models of any width and loudness on one axis."""
    made = []
    # Bands of so many lines would lie over each other.
    bare = compare.drop(columns=[*BAND], errors="ignore").astype({"run": str})
    visual = bare[bare["group"] == VISUAL]
    for metric, title in (("norm", "Norm: visual / text"), ("angle", _TURNING)):
        series = []
        for run, color in series_colors(compare).items():
            rows = drawn_rows(visual, GEOMETRIC_RATIOS[metric], {"run": run})
            if len(rows) > 1:  # states that no layer changes are no line
                look = GROUP_LOOKS[VISUAL]._replace(color=color)
                series.append(series_of(run, look, rows))
        made.append(chart(title, series, zero=False) | {"log": True, "reference": 1.0})
    return [drawn for drawn in made if drawn["series"]]


def draw_overlay(title: str, compare: pd.DataFrame, ax: Given = None) -> Figure:
    """Runs over each other: norm and cosine before and after a change (Figure 4)."""
    runs = [str(run) for run in dict.fromkeys(compare["run"])]
    compare = compare.assign(run=compare["run"].astype(str))
    drawing, grid = panels(title, DOUBLE_WIDTH, 3.2, (1, 2), ax)
    for axes, panel, letter in zip(grid[0], METRICS[:2], "ab", strict=True):
        axes.set_title(f"({letter}) {panel.title}", loc="left")
        for place, run in enumerate(runs):
            for group in (TEXT, VISUAL):
                look = series_look(place)._replace(linestyle=GROUP_LOOKS[group].linestyle)
                of_run = {"run": run, "group": group}
                curve = Curve("", panel.curves[0].quantity, look, of_run)
                rows = curve.rows(compare)
                draw_line(axes, rows[rows["mean"].notna()], "mean", look, "", clip_on=False)
        mark_layers(axes, int(compare["layer"].max()))
    norms = select(compare, "norm")
    log_or_from_zero(grid[0, 0], norms.loc[norms["group"].isin([VISUAL, TEXT]), "mean"])
    grid[0, 1].set_ylim(top=1.0)
    handles = [
        Line2D([], [], **GROUP_LOOKS[group]._replace(color="0.3", marker="")._asdict(), label=group)
        for group in (VISUAL, TEXT)
    ]
    handles += [
        Line2D([], [], **series_look(place)._replace(linestyle="-")._asdict(), label=drawable(run))
        for place, run in enumerate(runs)
    ]
    legend_below(drawing, grid, handles)
    return drawing


def draw_small_multiples(title: str, compare: pd.DataFrame, ax: Given = None) -> Figure:
    """One panel a run on the same axes: who stays the same longest, model by model (Figure 3)."""
    runs = list(dict.fromkeys(compare["run"]))
    columns = min(_COLUMNS, len(runs))
    rows = -(-len(runs) // columns)
    height, shared = 1.9 * rows + 0.6, {"sharex": True, "sharey": True}
    drawing, grid = panels(title, DOUBLE_WIDTH, height, (rows, columns), ax, **shared)
    places, deepest = list(grid.flat), int(compare["layer"].max())
    for axes, run in zip(places, runs, strict=False):
        draw_panel(axes, _COSINE, compare[compare["run"] == run], deepest, clip_on=False)
        axes.set_title(shortened(str(run), round(_LETTERS / columns)), loc="left")
    for axes in places[len(runs) :]:
        axes.set_axis_off()
    # A panel above an empty place has no other below it: it carries the layers itself.
    for place, axes in enumerate(places[: len(runs)]):
        below = place + columns < len(runs)
        axes.set_xlabel("" if below else "decoder layer")
        axes.tick_params(labelbottom=not below)
    limit_cosine(places[: len(runs)], _COSINE.values(compare))
    for row in grid:
        row[0].set_ylabel("cosine, input and output")
    legend_below(drawing, grid, handles_of([_COSINE], compare, places))
    return drawing


def draw_training(title: str, compare: pd.DataFrame, ax: Given = None) -> Figure:
    """Checkpoints of one training, coloured by step: does the gap close? (Figure 5)."""
    shared: dict[str, Any] = {"sharex": True, "sharey": True}
    drawing, grid = panels(title, DOUBLE_WIDTH, 2.7, (1, 2), ax, **shared)
    scale = step_scale(compare["step"])
    for axes, group, letter in zip(grid[0], (VISUAL, TEXT), "ab", strict=True):
        axes.set_title(f"({letter}) {group} tokens", loc="left")
        rows = select(compare, "cosine", group=group).dropna(subset="mean")
        for step in sorted(rows["step"].unique()):
            checkpoint = rows[rows["step"] == step].sort_values("layer")
            look = GROUP_LOOKS[group]._replace(color=step_color(scale, step))
            size = 4 if len(checkpoint) == 1 else 0  # many lines: marks would hide them
            draw_line(axes, checkpoint, "mean", look, "", markersize=size, clip_on=False)
        mark_layers(axes, int(compare["layer"].max()))
    grid[0, 0].set_ylabel("cosine, layer input and output")
    cosines = select(compare, "cosine")
    limit_cosine(grid[0], cosines.loc[cosines["group"].isin([VISUAL, TEXT]), "mean"])
    add_step_bar(drawing, scale, list(grid[0]), "training step")
    return drawing


def step_scale(steps: pd.Series) -> ScalarMappable:
    """From the steps of a training to colours, early ones pale."""
    # The pale end of the map would vanish on paper.
    colors = ListedColormap(colormaps["viridis_r"](np.linspace(0.08, 1.0, 256)))
    return ScalarMappable(Normalize(steps.min(), steps.max()), colors)


def step_color(scale: ScalarMappable, step: int) -> str:
    """The colour of a step, as matplotlib takes it."""
    red, green, blue, _ = scale.to_rgba(np.array(step))
    return to_hex((red, green, blue))


def add_step_bar(
    drawing: Figure, scale: ScalarMappable, panels: Sequence[Axes], label: str
) -> None:
    """The colours of ``step_scale`` as a bar beside panels."""
    drawing.colorbar(
        scale,
        ax=list(panels),
        label=label,
        pad=0.01,
        ticks=MaxNLocator(integer=True),
        format=FuncFormatter(lambda step, _: f"{step:.0f}"),
    )
