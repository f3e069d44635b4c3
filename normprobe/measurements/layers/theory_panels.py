"""What is drawn of theory.csv, one panel a number: in the figure and on the page."""

from dataclasses import dataclass

from normprobe.report.figures.style import GROUP_LOOKS, GroupLook
from normprobe.schema import TEXT, VISUAL

_BOTH = GroupLook("#262626", "o", "-")
_OTHER = GroupLook("#8c8c8c", "s", "--")
_THIRD = GroupLook("#8c8c8c", "^", ":")


@dataclass(frozen=True)
class Line:
    """A column of theory.csv.

    Attributes:
        name: in the legend.
        column: what is drawn, with its interval.
        look: how.
    """

    name: str
    column: str
    look: GroupLook


@dataclass(frozen=True)
class Panel:
    """Some lines on the same axes.

    Attributes:
        title: what they are.
        lines: back to front.
        judged: a column whose range in assumptions.csv is that of every line; empty for none.
        ratio: shown by its logarithm where it spans much.
        own_legend: the names are not those of the modalities.
    """

    title: str
    lines: tuple[Line, ...]
    judged: str = ""
    ratio: bool = False
    own_legend: bool = False


def _single(title: str, column: str, *, judged: bool = True, ratio: bool = False) -> Panel:
    return Panel(title, (Line(title, column, _BOTH),), judged * column, ratio)


def _each(title: str, column: str) -> Panel:
    lines = tuple(Line(name, f"{column}_{name}", GROUP_LOOKS[name]) for name in (VISUAL, TEXT))
    return Panel(title, lines, lines[0].column)


#: In the order of assumptions.csv; the lag angle, which is not judged, last.
PANELS = (
    _single("visual / text norm", "norm_ratio", ratio=True),
    _single("visual / text |D|", "update_norm_ratio", ratio=True),
    _each("spread of |D|", "update_norm_cv"),
    _each("correlation of log |D|, log |x|", "update_norm_correlation"),
    _single("phi, visual - text (rad)", "update_angle_difference"),
    _each("spread of phi (rad)", "update_angle_std"),
    Panel(
        "mean cosine over pairs",
        (
            Line("visual turn, text state", "visual_turn_to_text_mean", GROUP_LOOKS[VISUAL]),
            Line("text turn, visual state", "text_turn_to_visual_mean", GROUP_LOOKS[TEXT]),
            Line("visual turn, text turn", "turn_to_turn_mean", _BOTH),
        ),
        "visual_turn_to_text_mean",
        own_legend=True,
    ),
    _each("correlation of log angle, log |x|", "norm_angle_correlation"),
    _single("angle ratio, miss (Eq. 13)", "angle_ratio_error", ratio=True),
    Panel(
        "cross-modal cosine",
        (
            Line("Eq. 15 from layer 0 on", "compounded_cross_modal_cosine_mean", _THIRD),
            Line("Eq. 15, one layer on", "predicted_cross_modal_cosine_mean", _OTHER),
            Line("measured", "cross_modal_cosine_mean", _BOTH),
        ),
        own_legend=True,
    ),
    _single("measured - predicted (Eq. 15)", "cosine_residual_mean"),
    _single("lag angle (rad), never below 0", "lag_angle_mean", judged=False),
)

#: Mean cosines over all (visual, text) pairs, where they are and where attention reads them.
CROSSED = (
    Line("visual, text", "cross_modal_cosine_mean", _BOTH),
    Line("visual, text, common mean taken out", "centered_cross_modal_cosine_mean", _OTHER),
    Line("visual, text, attention input", "attention_input_cosine_mean", _THIRD),
)
