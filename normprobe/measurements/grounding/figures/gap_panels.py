"""The gaps of one run or several against depth: a panel a quantity, a band where there are ends."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from normprobe.report.figures.glyphs import drawable
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    SERIES_COLORS,
    mark_layers,
    new_figure,
)

_HEIGHT = 2.7  # inches
_LEGEND_COLUMNS = 3

#: Quantity -> what its gap is.
PANELS = {
    "cosine": "cosine with the word, inside - outside",
    "score": "attention score of the word, inside - outside",
}


def gap_panels(title: str, grounding: pd.DataFrame, runs: list[str]) -> Figure:
    """Cosine and score gap by layer, each with its 95 % interval.

    Args:
        title: the figure's title.
        grounding: rows of ``grounding.csv`` with a column ``run``.
        runs: in the order of the legend.
    """
    lines = -(-(len(runs) + 1) // _LEGEND_COLUMNS)
    drawing = new_figure(DOUBLE_WIDTH, _HEIGHT + 0.18 * (lines - 1), title)
    for axes, letter, (quantity, label) in zip(
        drawing.subplots(1, len(PANELS)), "ab", PANELS.items(), strict=True
    ):
        axes.set_title(f"({letter}) {label}", loc="left")
        axes.axhline(0.0, color="0.4", linewidth=0.9, zorder=0)
        column = f"{quantity}_gap"
        for place, run in enumerate(runs):
            rows = grounding[(grounding["run"] == run) & grounding[column].notna()]
            color = SERIES_COLORS[place % len(SERIES_COLORS)]
            axes.plot(
                rows["layer"],
                rows[column],
                color=color,
                marker="osD^vPX"[place % 7],
                markevery=max(1, len(rows) // 12),
                label=drawable(run),
            )
            ends = [rows[f"{column}_ci_{end}"] for end in ("low", "high")]
            axes.fill_between(rows["layer"], *ends, color=color, alpha=0.2, linewidth=0)
        mark_layers(axes, int(grounding["layer"].max()))
    handles = drawing.axes[0].get_legend_handles_labels()[0] if len(runs) > 1 else []
    handles.append(Patch(color="0.75", label="95 % CI over images"))
    drawing.legend(handles=handles, loc="outside lower center", ncols=_LEGEND_COLUMNS)
    return drawing
