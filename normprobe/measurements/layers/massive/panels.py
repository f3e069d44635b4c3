"""What is drawn of massive.csv, one panel a number: in the figure and on the page."""

from dataclasses import dataclass

from normprobe.measurements.layers.massive.without import SUFFIX
from normprobe.report.figures.style import GROUP_LOOKS, GroupLook
from normprobe.schema import SPECIAL, TEXT, VISUAL

_WITHOUT = GroupLook("#262626", "s", "--")


@dataclass(frozen=True)
class Curve:
    """A column of massive.csv, of one token group.

    Attributes:
        name: in the legend.
        group: whose rows.
        column: what is drawn, with its interval.
        look: how.
    """

    name: str
    group: str
    column: str
    look: GroupLook


@dataclass(frozen=True)
class Panel:
    """Some curves on the same axes.

    Attributes:
        title: what they are.
        curves: front to back.
        ratio: shown by its logarithm where it spans much.
    """

    title: str
    curves: tuple[Curve, ...]
    ratio: bool = False


def _groups(title: str, column: str) -> Panel:
    curves = (Curve(name, name, column, GROUP_LOOKS[name]) for name in (VISUAL, TEXT, SPECIAL))
    return Panel(title, tuple(curves))


def _with_and_without(title: str, column: str) -> Panel:
    return Panel(
        title,
        (
            Curve("all tokens", VISUAL, column, GROUP_LOOKS[VISUAL]),
            Curve("without massive", VISUAL, column + SUFFIX, _WITHOUT),
        ),
        ratio=True,
    )


PANELS = (
    _groups("share of |h|² in largest dim.", "top1_share_mean"),
    _groups("share of |h|² in 10 largest dim.", "top10_share_mean"),
    _groups("share of massive tokens", "massive_mean"),
    _with_and_without("visual / text norm", "norm_ratio_to_text"),
    _with_and_without("visual / text angle", "angle_ratio_to_text"),
    Panel(
        "share of visual tokens",
        (
            Curve("sinks", VISUAL, "sink_mean", GroupLook("#882255", "o", "-")),
            Curve("of high norm", VISUAL, "high_norm_mean", GroupLook("#999933", "s", "--")),
            Curve("still so far", VISUAL, "still_mean", GroupLook("#44AA99", "^", ":")),
        ),
    ),
)
