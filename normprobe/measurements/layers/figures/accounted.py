"""Turning at another rate in Eq. 13: what norms, update sizes and update angles account for."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from normprobe.measurements.layers.accounted import ONE_LAYER, PARTS
from normprobe.report.figures.lines import INTERVAL_WORDS, Given, draw_column, ends_drawn, panels
from normprobe.report.figures.style import DOUBLE_WIDTH, GROUP_LOOKS, log_or_from_zero, mark_layers
from normprobe.schema import TEXT, VISUAL

TABLES = ("accounted",)

_HEIGHT = 3.0  # inches
_FEW = 5  # ticks
#: Words and colours of the parts, dark to light; none is a token group's.
PART_LOOKS = dict(
    zip(
        PARTS,
        (
            ("norms", "#332288"),
            ("update sizes", "#44AA99"),
            ("update angles", "#DDCC77"),
            ("rest", "#BBBBBB"),
        ),
        strict=True,
    )
)
#: Columns of accounted.csv, their words, and how they are drawn.
ANGLES = {
    "text_angle": ("text", GROUP_LOOKS[TEXT]),
    "visual_angle_at_text_norm": (
        "visual, at the text's norm (Eq. 13)",
        GROUP_LOOKS[VISUAL]._replace(linestyle=":", marker="^"),
    ),
    "visual_angle": ("visual", GROUP_LOOKS[VISUAL]),
}


def figure(title: str, accounted: pd.DataFrame, ax: Given = None) -> Figure:
    """The parts of the ratio of angles by layer, and the angle that visual tokens would have."""
    rows = accounted[accounted["scope"] == ONE_LAYER]
    rows = rows.assign(layer=rows["layers"].astype(int))
    drawing, grid = panels(title, DOUBLE_WIDTH, _HEIGHT, (1, 2), ax)
    parts, angles = grid[0]
    _draw_parts(parts, rows)
    _draw_angles(angles, rows)
    parts.set_title("(a) text angle / visual angle, by part", loc="left")
    angles.set_title("(b) angular velocity (radians per layer)", loc="left")
    for axes, ncols in ((parts, 2), (angles, 1)):
        handles = [*axes.get_legend_handles_labels()[0], *ends_drawn([axes])]
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "fontsize": 7}
        axes.legend(handles=handles, ncols=ncols, **below)
    return drawing


def _draw_parts(axes: Axes, rows: pd.DataFrame) -> None:
    """Logarithms, which add up, as bars on each other; the axis names the ratios."""
    above, below = np.zeros(len(rows)), np.zeros(len(rows))
    for part, (word, color) in PART_LOOKS.items():
        values = rows[f"log_{part}"].fillna(0.0).to_numpy()
        start = np.where(values >= 0, above, below)
        axes.bar(rows["layer"], values, 0.8, start, color=color, label=word)
        above, below = above + values.clip(min=0), below + values.clip(max=0)
    measured = np.log(rows["angle_ratio"])
    ends = [np.log(rows[f"angle_ratio_{end}"]) for end in ("ci_low", "ci_high")]
    away = [(measured - ends[0]).fillna(0.0).clip(lower=0), (ends[1] - measured).fillna(0.0)]
    axes.errorbar(
        rows["layer"],
        measured,
        [away[0], away[1].clip(lower=0)],
        fmt="D",
        markersize=3,
        color="black",
        elinewidth=0.8,
        label=f"measured, {INTERVAL_WORDS}",
    )
    axes.axhline(0.0, color="black", linewidth=0.6)
    mark_layers(axes, int(rows["layer"].max()))
    axes.set_xlim(0.3, rows["layer"].max() + 0.7)
    ratios = _named_ratios(*np.exp(axes.get_ylim()))
    axes.set_yticks(np.log(ratios), [f"{ratio:g} x" for ratio in ratios])


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


def _draw_angles(axes: Axes, rows: pd.DataFrame) -> None:
    for column, (word, look) in ANGLES.items():
        draw_column(axes, rows, column, look, word)
    mark_layers(axes, int(rows["layer"].max()))
    axes.set_xlim(0.7 if len(rows) > 1 else 0.3, rows["layer"].max() + 0.3)
    log_or_from_zero(axes, rows[list(ANGLES)].to_numpy(float))
