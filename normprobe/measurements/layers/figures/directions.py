"""What attention reads, and where the tokens point: norms behind the input norm, mean cosines."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normprobe.measurements.layers.theory_panels import CROSSED
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    GROUP_LOOKS,
    GroupLook,
    asks_for_log,
    mark_layers,
    new_figure,
    use_log,
)
from normprobe.schema import ATTENTION_INPUT, TEXT, VISUAL

TABLES = ("theory", "layers")

_HEIGHT = 3.2  # inches


def figure(title: str, theory: pd.DataFrame, layers: pd.DataFrame) -> Figure:
    """Norms of the residual and of what attention reads; mean cosines within and across groups.

    Args:
        title: the figure's title.
        theory: ``theory.csv``, for the pairs.
        layers: ``layers.csv``.
    """
    drawing = new_figure(DOUBLE_WIDTH, _HEIGHT, title)
    norms, cosines = drawing.subplots(1, 2)
    norms.set_title("(a) L2 norm, and where attention reads", loc="left")
    cosines.set_title("(b) mean cosine over pairs of tokens", loc="left")
    for group in (TEXT, VISUAL):
        rows, look = layers[layers["group"] == group], GROUP_LOOKS[group]
        read = look._replace(linestyle=":")
        _draw(norms, rows, "norm_mean", look._replace(linestyle="-"), group)
        _draw(norms, rows, f"{ATTENTION_INPUT}_mean", read, f"{group}, attention input")
        _draw(cosines, rows, "within_modal_cosine_mean", look, f"within {group}")
    for line in CROSSED:
        _draw(cosines, theory, line.column, line.look, line.name)
    drawn = layers.loc[layers["group"].isin([VISUAL, TEXT])]
    values = drawn.reindex(columns=["norm_mean", f"{ATTENTION_INPUT}_mean"]).to_numpy(float)
    if asks_for_log(values):
        use_log(norms, "y", values)
    else:
        norms.set_ylim(bottom=0)
    cosines.axhline(0.0, color="black", linewidth=0.6, zorder=1)
    for axes in (norms, cosines):
        mark_layers(axes, int(layers["layer"].max()))
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, fontsize=7)
    return drawing


def _draw(axes: Axes, rows: pd.DataFrame, column: str, look: GroupLook, label: str) -> None:
    """A line and its interval, where the table has the column."""
    if column not in rows or rows[column].isna().all():
        return
    axes.plot(
        rows["layer"],
        rows[column],
        label=label,
        color=look.color,
        linestyle=look.linestyle,
        marker=look.marker,
        markersize=3,
        markevery=max(1, len(rows) // 12),
        zorder=3,
    )
    ends = [f"{column}_ci_low", f"{column}_ci_high"]
    if set(ends) <= set(rows.columns):
        low, high = (rows[end] for end in ends)
        axes.fill_between(rows["layer"], low, high, color=look.color, alpha=0.25, linewidth=0)
