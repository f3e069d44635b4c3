"""What is drawn of ``cause``: turning and answers by dose, by intervention, and by layer."""

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from normprobe.extensions.cause.answer_figure import draw_answer, named_interventions, sides
from normprobe.extensions.cause.effect_numbers import effect_rows, on_map
from normprobe.report.charts import PLAIN, Curve, Panel, draw_panels
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given, entries, legend_below, panels
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    GROUP_LOOKS,
    GroupLook,
    drawable,
    series_look,
)
from normprobe.runs.run_folder import RunStore
from normprobe.schema import TEXT, VISUAL
from normprobe.tidy import BAND, INTERVAL, QUANTITY, select

#: What becomes of answers: quantity, and its words with the unit.
OUTCOME_WORDS = {
    "nll": "change of NLL (nats a token)",
    "accuracy": "change of accuracy (share)",
    "greedy_accuracy": "its own answers: accuracy (share)",
    "kl": "KL to untouched (nats a token)",
    "changed": "answers that change (share)",
}
_DOSED = {
    "placebo": GROUP_LOOKS[TEXT]._replace(marker="v", linestyle=":"),
    "scale-text": GROUP_LOOKS[TEXT],
    "scale": GROUP_LOOKS[VISUAL],
}
#: Interventions without a dose that doses are read against.
_LEVELS = {
    "freeze": GroupLook("#262626", "", "--"),
    "blank": GroupLook("#8c8c8c", "", "-."),
}
#: Interventions on one layer alone.
DRAWN_BY_LAYER = ("norm-at-layer", "freeze-layer", "knockout-layer", "patch-layer")
#: One forward a layer, in words.
SWEPT = {"freeze-layer": "frozen", "knockout-layer": "hidden", "patch-layer": "replaced"}
_DEPTHS = 6  # layers that are drawn of a deep model
_THICK = "95 % interval"
_FRAME, _LINE = 0.9, 0.19  # inches: title, axis and legend; an intervention


def drawings(run: RunStore) -> list[Drawing]:
    """The figures that a run of ``cause`` has something for, the main one first."""
    cause = run.rows_of("cause")
    offered = (
        (Drawing("cause", ("cause",), draw_answer), sides),
        (Drawing("doses", ("cause",), draw_doses), dose_panels),
        (Drawing("effects", ("cause",), draw_effects), known_outcomes),
        (Drawing("by_layer", ("cause",), draw_layers), effect_panels),
    )
    return [drawing for drawing, of in offered if cause is None or of(cause)]


def known_outcomes(cause: pd.DataFrame) -> list[str]:
    """What is known of answers: of right ones where there are any."""
    known = set(cause.loc[cause["mean"].notna() & (cause["layer"] == 0), QUANTITY])
    return [name for name in OUTCOME_WORDS if name in known][:3]


# --- by dose -------------------------------------------------------------------------------------


def dose_panels(cause: pd.DataFrame) -> list[Panel]:
    """Visual angle and answers by dose, of ``with_levels(cause)``."""
    layers = np.sort(effect_rows(cause, "scale", "visual_angle")["layer"].unique())
    if not len(layers):
        return []
    drawn = layers[np.unique(np.linspace(0, len(layers) - 1, _DEPTHS).round().astype(int))]
    colours = map(to_hex, colormaps["viridis"](np.linspace(0.85, 0, len(drawn))))
    angles = [
        _by_dose(f"layer {layer}", "scale", "visual_angle", GroupLook(colour, "o", "-"), layer)
        for layer, colour in zip(drawn[::-1], colours, strict=True)
    ]
    found = [Panel("visual angle (radians per layer)", angles)]
    for quantity in [name for name in OUTCOME_WORDS if len(effect_rows(cause, "scale", name))][:1]:
        curves = [
            _by_dose(name, name, quantity, look)
            for name, look in (_LEVELS | _DOSED).items()
            if len(effect_rows(cause, name, quantity))
        ]
        found.append(Panel(OUTCOME_WORDS[quantity], curves, "difference"))
    return found


def _by_dose(name: str, done: str, quantity: str, look: GroupLook, layer: int = 0) -> Curve:
    where = {"intervention": done, "layer": layer}
    estimate = "value" if layer else "mean"
    return Curve(name, quantity, look, where, estimate, doubted="off_map", across="dose")


def with_levels(cause: pd.DataFrame) -> pd.DataFrame:
    """Beside the doses the untouched model at dose 1, and levels at the least and the most."""
    doses = cause.loc[cause["intervention"] == "scale", "dose"]
    at_one = cause[cause["intervention"].isin(_DOSED)]
    at_one = at_one.drop_duplicates(["intervention", "layer", QUANTITY])
    untouched = dict.fromkeys(("mean", *INTERVAL, *BAND), 0.0)
    at_one = at_one.assign(dose=1.0, value=at_one["untouched"], off_map=False, **untouched)
    is_level = cause["intervention"].isin(_LEVELS)
    levels = [cause[is_level].assign(dose=dose) for dose in (doses.min(), doses.max())]
    return pd.concat([cause[~is_level], at_one, *levels], ignore_index=True)


def draw_doses(title: str, cause: pd.DataFrame, ax: Given = None) -> Figure:
    """Turning and answers by the dose that visual states are scaled with."""
    declared, table = dose_panels(cause), with_levels(cause)
    drawing = draw_panels(title, declared, table, ax, columns=len(declared), height=2.6)
    if declared[-1].scale == "difference":
        axes = drawing.axes[len(declared) - 1] if ax is None else np.ravel(np.asarray(ax))[-1]
        _see_small_ones(axes, "y", effect_rows(cause, "scale", known_outcomes(cause)[0]))
    return drawing


def _see_small_ones(axes: Axes, which: str, rows: pd.DataFrame) -> None:
    """Beyond the median effect a logarithmic axis: a grey picture costs a hundred times as much."""
    sizes = rows["mean"].abs()
    least = 10.0 ** np.floor(np.log10(sizes[sizes > 0].median())) if (sizes > 0).any() else 1.0
    getattr(axes, f"set_{which}scale")("symlog", linthresh=least)
    axis = getattr(axes, f"{which}axis")
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    (axes.set_ylabel if which == "y" else axes.set_xlabel)(f"linear to {least:g}, then logarithmic")


# --- by intervention -----------------------------------------------------------------------------


def draw_effects(title: str, cause: pd.DataFrame, ax: Given = None) -> Figure:
    """What each intervention on the whole model does to answers; of several runs, beside others."""
    quantities = known_outcomes(cause)
    rows = cause[cause[QUANTITY].isin(quantities) & ~cause["intervention"].isin(DRAWN_BY_LAYER)]
    rows = rows.assign(name=named_interventions(rows), run=rows.get("run", ""))
    names, runs = list(dict.fromkeys(rows["name"])), list(dict.fromkeys(rows["run"]))
    height = _FRAME + _LINE * len(names) * max(1.0, len(runs) / 2)
    shape = (1, max(1, len(quantities)))
    drawing, grid = panels(title, DOUBLE_WIDTH, height, shape, ax, sharey=True)
    for axes, quantity in zip(grid.flat, quantities, strict=False):
        axes.set_title(OUTCOME_WORDS[quantity], loc="left")
        axes.axvline(0, color="0.4", linewidth=0.9, zorder=0)
        here = select(rows, quantity)
        for place, run in enumerate(runs):
            of_run = here[here["run"] == run]
            look = series_look(place) if len(runs) > 1 else GROUP_LOOKS[VISUAL]
            y = np.array([names.index(name) for name in of_run["name"]], float)
            y += (place - (len(runs) - 1) / 2) / (len(runs) + 1)
            ends = of_run[[*INTERVAL]].to_numpy(float).T
            axes.hlines(y, *ends, color=look.color, alpha=0.5, linewidth=3)
            for hollow, label in ((False, drawable(str(run))), (True, "outside the usual range")):
                some = on_map(of_run).to_numpy() != hollow
                if some.any():
                    face = "white" if hollow else look.color
                    axes.plot(
                        of_run["mean"][some],
                        y[some],
                        look.marker,
                        color=look.color,
                        markerfacecolor=face,
                        label=label,
                    )
        if quantity in ("nll", "kl"):
            _see_small_ones(axes, "x", here)
    grid.flat[0].set_yticks(range(len(names)), labels=[drawable(name) for name in names])
    grid.flat[0].set_ylim(len(names) - 0.5, -0.5)
    known = entries(grid) | {_THICK: Patch(color="0.65", label=_THICK)}
    legend_below(drawing, grid, [known[name] for name in known if name])
    return drawing


# --- by layer ------------------------------------------------------------------------------------


def effect_panels(cause: pd.DataFrame) -> list[Panel]:
    """What one layer changes: read with other norms, frozen, or hidden."""
    found = []
    if len(effect_rows(cause, "norm-at-layer", "angle_ratio")):
        where = {"intervention": "norm-at-layer"}
        curves = [
            Curve("read as loud as text", "angle_ratio", PLAIN[1], where, "value"),
            Curve("untouched", "angle_ratio", PLAIN[0], where, "untouched"),
        ]
        found.append(Panel("text / visual angle", curves, "ratio"))
        words = "read as loud as text / untouched"
        curve = Curve(words, "visual_angle", GROUP_LOOKS[VISUAL], where)
        found.append(Panel("visual angle: as loud as text / untouched", [curve], "ratio"))
    for name, done in SWEPT.items():
        known = [quantity for quantity in OUTCOME_WORDS if len(effect_rows(cause, name, quantity))]
        for quantity in known[:2]:
            where = {"intervention": name}
            curve = Curve(f"{done} in this layer", quantity, GROUP_LOOKS[VISUAL], where)
            title = f"{done} in one layer: {OUTCOME_WORDS[quantity]}"
            found.append(Panel(title, [curve], "difference"))
    return found


def draw_layers(title: str, cause: pd.DataFrame, ax: Given = None) -> Figure:
    """Turning and answers by the layer that is changed."""
    by_layer = cause[cause["intervention"].isin(DRAWN_BY_LAYER) & (cause["layer"] > 0)]
    return draw_panels(title, effect_panels(cause), by_layer, ax, columns=2, height=2.1)
