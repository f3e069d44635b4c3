"""The paper's figures of decoder layers (Figures 1 b, 2, 3, 4 and 5): its panels, in its order.

Colour, marker and line tell visual from text. Where panels compare two runs, colour and marker do,
and the second run is dashed with hollow markers. Over a training, marker and line do, and colour is
the step.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normprobe.measurements.layers.compared import add_step_bar, step_color, step_scale
from normprobe.report.figures.lines import draw_estimate, ends_drawn, legend_below
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    GROUP_LOOKS,
    drawable,
    log_or_from_zero,
    mark_layers,
    new_figure,
    shortened,
    wrapped,
)
from normprobe.schema import TEXT, VISUAL
from normprobe.tidy import INTERVAL

_COLUMNS = 2
_WIDTH, _HEIGHT = DOUBLE_WIDTH / _COLUMNS, 2.2  # inches of a panel
_LINE = 0.16  # inches of a line of the title
_LONGEST = 55  # characters of the name of a run
_LABELS = {"norm": "L2 norm", "cosine": "cosine, layer input and output"}
_STYLES: tuple[Any, ...] = ("-", "--")  # of the first and the second run of a panel
#: Likewise: small hollow markers before large full ones are seen where lines meet.
_MARKERS: tuple[dict[str, Any], ...] = ({"markersize": 4.5}, {"markerfacecolor": "white"})
_GREY = "0.3"


def drawn_as_paper(title: str, curves: pd.DataFrame, steps: str = "") -> Figure:
    """Panels two by two, those of one metric on one scale; a panel alone is one column wide."""
    panels = list(dict.fromkeys(curves["panel"]))
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    scale = step_scale(curves["step"]) if steps else None
    heading = wrapped(title, _WIDTH * columns)
    height = _HEIGHT * rows + _LINE * (4 + heading.count("\n"))
    drawing = new_figure(_WIDTH * columns, height, heading)
    grid = drawing.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    shown = list(grid.flat)[: len(panels)]
    for axes, panel in zip(shown, panels, strict=True):
        of_panel = curves[curves["panel"] == panel]
        _draw(axes, of_panel, scale)
        _name(axes, of_panel, _panel_name(of_panel, scale))
        _limit(axes, curves[curves["metric"] == of_panel["metric"].iloc[0]])
    if scale is not None:
        add_step_bar(drawing, scale, shown, steps)
    legend_below(drawing, grid, _handles(curves, scale, ends_drawn(shown)))
    return drawing


def _draw(axes: Axes, of_panel: pd.DataFrame, scale: ScalarMappable | None) -> None:
    """The lines of a panel, its runs in their order, and the published number."""
    several = of_panel["run"].nunique() > 1
    for place, (_, of_run) in enumerate(of_panel.groupby("run", sort=False)):
        for group in (TEXT, VISUAL):
            rows = of_run[of_run["group"] == group]
            look = GROUP_LOOKS[group]
            if scale is not None:
                look = look._replace(color=step_color(scale, rows["step"].iloc[0]))
            elif several:
                look = look._replace(linestyle=_STYLES[place])
            marks = _MARKERS[place] if scale is None and several else {}
            # A line that runs along the top is not cut in half.
            draw_estimate(axes, rows, "mean", look, group, clip_on=False, **marks)
            axes.plot(rows["layer"], rows["published"], **_published(look.color))


def _panel_name(of_panel: pd.DataFrame, scale: ScalarMappable | None) -> str:
    """Which run or training a panel shows; of two runs the legend says it."""
    first, count = str(of_panel["label"].iloc[0]), of_panel["run"].nunique()
    if count == 1:
        return first
    return "" if scale is None else f"{count} runs, the first: {first}"


def _name(axes: Axes, of_panel: pd.DataFrame, told: str) -> None:
    """Which panel of the paper it is, of which run, and what its axes are."""
    axes.set_title(str(of_panel["panel"].iloc[0]), loc="left", pad=13)
    axes.annotate(
        shortened(told, _LONGEST),
        (0, 1),
        (0, 4),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=6,
    )
    axes.set_ylabel(_LABELS[of_panel["metric"].iloc[0]])
    mark_layers(axes, int(of_panel["layer"].max()))


def _limit(axes: Axes, of_metric: pd.DataFrame) -> None:
    """The scale of all panels of a metric: a cosine ends at 1, a norm begins at 0 or is log."""
    values = of_metric[["mean", *INTERVAL, "published"]]
    if of_metric["metric"].iloc[0] == "cosine":
        lowest = float(values.min().min())
        axes.set_ylim(lowest - 0.05 * max(1 - lowest, 1e-3), 1.0)
    else:
        log_or_from_zero(axes, values)


def _handles(
    curves: pd.DataFrame, scale: ScalarMappable | None, ends: list[Artist]
) -> Sequence[Artist]:
    """What lines, markers and ``ends`` around them are."""
    pair = scale is None and curves.groupby("panel")["run"].nunique().max() > 1
    handles: list[Artist] = []
    for group in (VISUAL, TEXT):
        look = GROUP_LOOKS[group]
        if scale is not None:
            look = look._replace(color=_GREY)
        elif pair:
            look = look._replace(linestyle="none")
        handles.append(Line2D([], [], **look._asdict(), label=f"{group} tokens"))
    handles += ends
    if curves["published"].notna().any():
        handles.append(Line2D([], [], **_published(_GREY), label="paper, Table 2"))
    if pair:
        for place, label in enumerate(dict.fromkeys(curves["label"])):
            line = Line2D([], [], color=_GREY, linestyle=_STYLES[place], marker="o")
            handles.append(line)
            line.set(label=drawable(str(label)), **_MARKERS[place])
    return handles


def _published(color: str) -> dict[str, Any]:
    return {
        "color": color,
        "marker": "*",
        "markersize": 9,
        "markerfacecolor": "white",
        "linestyle": "none",
        "zorder": 4,
        "clip_on": False,
    }
