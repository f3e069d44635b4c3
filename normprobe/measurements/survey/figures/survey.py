"""The disparity of every model at its decoder input, with its interval."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from normprobe.report.figures.lines import Given, panels
from normprobe.report.figures.style import DOUBLE_WIDTH, GROUP_LOOKS, shortened, use_log
from normprobe.schema import VISUAL

TABLES = ("survey",)

_LINE = 0.2  # inches a model
_LONGEST = 48  # characters of a model's name


def figure(title: str, survey: pd.DataFrame, ax: Given = None) -> Figure:
    """Models from top to bottom by falling ratio; those without a ratio stand below, empty."""
    rows = survey.sort_values("disparity_input", ascending=False, na_position="last")
    lines = np.arange(len(rows))
    drawing, grid = panels(title, DOUBLE_WIDTH, 1.0 + _LINE * max(len(rows), 3), ax=ax)
    axes = grid[0, 0]
    look = GROUP_LOOKS[VISUAL]
    low, high = (rows[f"disparity_input_ci_{end}"].to_numpy(float) for end in ("low", "high"))
    axes.hlines(lines, low, high, color=look.color, linewidth=1)
    axes.plot(rows["disparity_input"], lines, look.marker, color=look.color, linestyle="none")
    axes.axvline(1, color="0.5", linewidth=0.6, linestyle=":")
    use_log(axes, "x", np.array([*rows["disparity_input"].to_numpy(float), 1.0]))
    axes.set_xlabel("visual / text norm at the decoder input (95 % interval)")
    axes.set_yticks(lines, labels=[shortened(str(name), _LONGEST) for name in rows["model"]])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="y", color="0.9", linewidth=0.5)
    return drawing
