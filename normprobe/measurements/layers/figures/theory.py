"""The paper's theory beside the measurement: Eq. 13, 15, 17 and the assumptions of Section 3.1."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    GROUP_LOOKS,
    GroupLook,
    asks_for_log,
    mark_layers,
    new_figure,
    use_log,
)
from normprobe.schema import TEXT, VISUAL

TABLES = ("theory", "assumptions")

_HEIGHT = 4.4  # inches: two rows of panels
_BOTH = GroupLook("0.15", "o", "-")
_OTHER = GroupLook("0.55", "s", "--")
_HOLDS = "#F7EFC6"  # behind everything


def figure(title: str, theory: pd.DataFrame, assumptions: pd.DataFrame) -> Figure:
    """Six panels over the decoder layers; yellow bands are the ranges in which an assumption holds.

    Args:
        title: the figure's title.
        theory: ``theory.csv``.
        assumptions: ``assumptions.csv``, for the ranges.
    """
    drawing = new_figure(DOUBLE_WIDTH, _HEIGHT, title)
    panels = drawing.subplots(2, 3)
    for axes in panels.flat:
        mark_layers(axes, int(theory["layer"].max()))
        axes.set_xlabel("")
    for axes in panels[1]:
        axes.set_xlabel("decoder layer")
    ranges = assumptions.set_index("assumption")[["low", "high"]]

    cosine, lag, ratio, geometry, direction, relation = panels.flat
    cosine.set_title("(a) cross-modal cosine (Eq. 15)", loc="left")
    _draw(cosine, theory, "cross_modal_cosine", _BOTH, "measured")
    _draw(cosine, theory, "predicted_cross_modal_cosine", _OTHER, "predicted")
    lag.set_title("(b) lag angle (Eq. 17), rad", loc="left")
    _draw(lag, theory, "lag_angle", _BOTH)
    ratio.set_title("(c) visual / text", loc="left")
    _band(ratio, ranges, "Uniform Update Magnitude")
    _draw(ratio, theory, "norm_ratio", _BOTH, "norm", spread=False)
    _draw(ratio, theory, "update_norm_ratio", _OTHER, "update norm", spread=False)
    drawn = theory[["norm_ratio_mean", "update_norm_ratio_mean"]].to_numpy()
    if asks_for_log(drawn):
        use_log(ratio, "y", drawn)
    geometry.set_title("(d) update angle, rad", loc="left")
    for group in (VISUAL, TEXT):
        _draw(geometry, theory, f"update_angle_{group}", GROUP_LOOKS[group])
    direction.set_title("(e) cosine, turn to other states", loc="left")
    _band(direction, ranges, "Random Rotational Direction")
    _draw(direction, theory, "visual_turn_to_text", GROUP_LOOKS[VISUAL])
    _draw(direction, theory, "text_turn_to_visual", GROUP_LOOKS[TEXT])
    relation.set_title("(f) log angle, log norm (Eq. 13)", loc="left")
    _band(relation, ranges, "angle against norm")
    for name, look in ((VISUAL, GROUP_LOOKS[VISUAL]), (TEXT, GROUP_LOOKS[TEXT]), ("both", _BOTH)):
        _draw(relation, theory, f"norm_angle_correlation_{name}", look, mean="")
    relation.set_ylim(-1.05, 1.05)
    relation.set_ylabel("correlation over tokens")
    for axes in (cosine, ratio):
        axes.legend(loc="best")
    _add_legend(drawing)
    return drawing


def _draw(
    axes: Axes,
    theory: pd.DataFrame,
    name: str,
    look: GroupLook,
    label: str = "",
    *,
    mean: str = "_mean",
    spread: bool = True,
) -> None:
    """The mean over samples as a line, one deviation either side as a band."""
    rows = theory[theory[f"{name}{mean}"].notna()]
    axes.plot(
        rows["layer"],
        rows[f"{name}{mean}"],
        label=label or None,
        color=look.color,
        linestyle=look.linestyle,
        marker=look.marker,
        markevery=max(1, len(rows) // 12),
        zorder=3,
    )
    if mean and spread:
        middle, deviation = rows[f"{name}_mean"], rows[f"{name}_std"]
        axes.fill_between(
            rows["layer"],
            middle - deviation,
            middle + deviation,
            color=look.color,
            alpha=0.15,
            linewidth=0,
        )


def _band(axes: Axes, ranges: pd.DataFrame, assumption: str) -> None:
    """Where the assumption holds."""
    if assumption in ranges.index:
        low, high = (float(ranges[end][assumption]) for end in ("low", "high"))
        axes.axhspan(max(low, -10.0), min(high, 1e4), color=_HOLDS, zorder=0, linewidth=0)


def _add_legend(drawing: Figure) -> None:
    handles: list[Line2D | Patch] = [
        Line2D([], [], **GROUP_LOOKS[group]._asdict(), label=group) for group in (VISUAL, TEXT)
    ]
    handles += [
        Line2D([], [], **_BOTH._asdict(), label="both"),
        Patch(color="0.8", label="one deviation over samples"),
        Patch(color=_HOLDS, label="assumption holds"),
    ]
    drawing.legend(handles=handles, loc="outside lower center", ncols=len(handles))
