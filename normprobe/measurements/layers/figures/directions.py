"""What attention reads, and where the tokens point: norms behind the input norm, mean cosines."""

import pandas as pd
from matplotlib.figure import Figure

from normprobe.measurements.layers.theory_panels import CROSSED
from normprobe.report.figures.lines import Given, draw_column, ends_drawn, panels
from normprobe.report.figures.style import DOUBLE_WIDTH, GROUP_LOOKS, log_or_from_zero, mark_layers
from normprobe.schema import ATTENTION_INPUT, TEXT, VISUAL

TABLES = ("theory", "layers")

_HEIGHT = 3.2  # inches


def figure(title: str, theory: pd.DataFrame, layers: pd.DataFrame, ax: Given = None) -> Figure:
    """Norms of the residual and of what attention reads; mean cosines within and across groups."""
    drawing, grid = panels(title, DOUBLE_WIDTH, _HEIGHT, (1, 2), ax)
    norms, cosines = grid[0]
    norms.set_title("(a) L2 norm, and where attention reads", loc="left")
    cosines.set_title("(b) mean cosine over pairs of tokens", loc="left")
    for group in (TEXT, VISUAL):
        rows, look = layers[layers["group"] == group], GROUP_LOOKS[group]
        read = look._replace(linestyle=":")
        draw_column(norms, rows, "norm_mean", look._replace(linestyle="-"), group)
        draw_column(norms, rows, f"{ATTENTION_INPUT}_mean", read, f"{group}, attention input")
        draw_column(cosines, rows, "within_modal_cosine_mean", look, f"within {group}")
    for line in CROSSED:
        draw_column(cosines, theory, line.column, line.look, line.name)
    drawn = layers.loc[layers["group"].isin([VISUAL, TEXT])]
    columns = ["norm_mean", f"{ATTENTION_INPUT}_mean"]
    log_or_from_zero(norms, drawn.reindex(columns=columns).to_numpy(float))
    cosines.axhline(0.0, color="black", linewidth=0.6, zorder=1)
    for axes in (norms, cosines):
        mark_layers(axes, int(layers["layer"].max()))
        handles = [*axes.get_legend_handles_labels()[0], *ends_drawn([axes])]
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18), "fontsize": 6.5}
        axes.legend(handles=handles, ncols=2, handlelength=2.4, columnspacing=1, **below)
    return drawing
