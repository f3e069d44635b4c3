"""Angular velocity and relative update against depth: how far a layer turns and moves a token."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normprobe.measurements.layers.figures.by_layer import (
    GROUPS,
    add_legend,
    two_panels,
    use_log_if_wide,
)
from normprobe.report.figures.lines import Given
from normprobe.report.figures.style import GROUP_LOOKS

TABLES = ("layers",)


def figure(title: str, layers: pd.DataFrame, ax: Given = None) -> Figure:
    """Angle in radians per layer, and relative update; angles below resolution are hollow."""
    drawing, grid = two_panels(title, layers, "angle", "relative_update", ax)
    angle, update = grid[0]
    use_log_if_wide(angle, layers, "angle")
    use_log_if_wide(update, layers, "relative_update")
    angle.set_title("(a) angular velocity (radians per layer)", loc="left")
    update.set_title("(b) relative update, ‖h \u2212 x‖ / ‖x‖", loc="left")
    hollow = []
    flagged = layers[layers["angle_below_resolution"].eq(True) & layers["angle_mean"].notna()]
    for group in GROUPS:
        rows = flagged[flagged["group"] == group]
        if len(rows):
            look = GROUP_LOOKS[group]
            angle.plot(
                rows["layer"],
                rows["angle_mean"],
                linestyle="none",
                marker=look.marker,
                markerfacecolor="white",
                color=look.color,
                zorder=4,
            )
    if len(flagged):
        hollow = [
            Line2D([], [], linestyle="none", marker="o", color="0.4", markerfacecolor="white")
        ]
        hollow[0].set_label("below resolution")
    add_legend(drawing, grid, *hollow)
    return drawing
