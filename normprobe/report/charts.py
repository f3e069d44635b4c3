"""What is drawn over decoder layers, said once: on paper by matplotlib, on a page as data.

    Panel("angular velocity (radians per layer)", by_group("angle", spread=True))

``draw_panels`` draws panels on paper, ``charts`` gives what the page's script draws of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import ArrayLike, NDArray

from normprobe.report.figures.lines import (
    BAND_WORDS,
    Given,
    draw_estimate,
    ends_drawn,
    in_sight,
    legend_below,
    panels,
)
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    GROUP_LOOKS,
    GroupLook,
    asks_for_log,
    mark_doses,
    mark_layers,
    series_look,
    use_log,
)
from normprobe.schema import AUDIO, IMAGE, SPECIAL, STRUCTURAL, TEXT, VIDEO, VISUAL
from normprobe.tidy import BAND, ESTIMATES, along, ends_of, select

#: The token groups that are drawn, back to front. ``non_visual`` is the sum of two of these.
GROUPS = (STRUCTURAL, SPECIAL, AUDIO, VIDEO, IMAGE, TEXT, VISUAL)
#: Quantiles of tokens between which a pale band lies.
SPREAD = ("q05", "q95")
#: How the only curve of a panel is drawn, or curves that are of no token group, front to back.
PLAIN = (
    GroupLook("#262626", "o", "-"),
    GroupLook("#8c8c8c", "s", "--"),
    GroupLook("#8c8c8c", "^", ":"),
)

_DASHES = {"-": "", "--": "7 4", "-.": "8 3 2 3", ":": "2 3"}
_HOLDS = "#F7EFC6"  # behind everything
_HOLLOW = {"linestyle": "none", "markerfacecolor": "white", "zorder": 4}
_LEGEND_SIZE = 6.5  # points
_ACROSS = {
    "layer": "decoder layer",
    "dose": "dose (states x dose)",
    "training_step": "training step",
}
_DOUBTS = {"off_map": "outside the usual range"}

#: Of an axis: ``zero``: from zero, or logarithmic where the numbers span a factor of 10; ``ratio``:
#: likewise, about what is drawn; ``share``: per cent; ``cosine``: up to 1; ``signed``: any number;
#: ``difference``: likewise, beside a line at zero; ``near``: likewise, zero need not be in sight.
Scale = Literal["zero", "ratio", "share", "cosine", "signed", "difference", "near"]


@dataclass(frozen=True)
class Curve:
    """A quantity of a tidy table over the layers."""

    name: str  # in the legend; that of a token group needs none of its panel's own
    quantity: str  # what is drawn
    look: GroupLook  # colour, marker and line
    # the rows: those that hold these values
    where: Mapping[str, object] = field(default_factory=dict)
    # which number of it, with its interval and its band where the table has them
    estimate: str = "mean"
    spread: bool = False  # whether 5 and 95 % quantiles of tokens are a pale band behind
    # what says where a point is drawn hollow, a column or a quantity; empty: none
    doubted: str = ""
    # the key that it is drawn over: ``layer``, ``training_step``, ``dose`` on a logarithmic axis
    across: str = "layer"

    def rows(self, table: pd.DataFrame) -> pd.DataFrame:
        """Its rows in order, ``layer`` what they lie over; ``doubted`` is true where it is."""
        rows = drawn_rows(table, self.quantity, self.where, self.across)
        if self.doubted and self.doubted not in rows:
            doubts = select(table, self.doubted, **self.where).set_index(self.across)["mean"]
            rows = rows.assign(**{self.doubted: rows[self.across].map(doubts).eq(1)})
        return rows if self.across == "layer" else rows.assign(layer=rows[self.across])

    def around(self, rows: pd.DataFrame) -> list[str]:
        """The columns of the ends of its pale band, where its rows have them."""
        return [*SPREAD] if self.spread and {*SPREAD} <= {*rows} else []


@dataclass(frozen=True)
class Panel:
    """Curves on the same axes."""

    title: str  # what they are
    curves: Sequence[Curve]  # back to front
    scale: Scale = "zero"  # of the axis
    judged: str = ""  # what calls the range in which each curve holds

    def values(self, table: pd.DataFrame) -> NDArray[np.float64]:
        """Every number that its axis has to hold."""
        held = [np.empty(0)]
        for curve in self.curves:
            rows = curve.rows(table)
            held += [
                in_sight(rows, curve.estimate),
                rows[curve.around(rows)].to_numpy(float).ravel(),
            ]
        values: NDArray[np.float64] = np.concatenate(held)
        return values[np.isfinite(values)]

    @property
    def across(self) -> str:
        """What its curves are drawn over."""
        return self.curves[0].across if self.curves else "layer"

    @property
    def has_legend(self) -> bool:
        """Whether it names curves that are no token groups."""
        return any(curve.name not in GROUP_LOOKS for curve in self.curves) and len(self.curves) > 1


def drawn_rows(
    table: pd.DataFrame, quantity: str, where: Mapping[str, object], across: str = "layer"
) -> pd.DataFrame:
    """The rows of a quantity in order, with an empty one where the table has others alone.

    There a line is broken. Estimates other than ``mean`` that the quantity has nowhere are left
    out.
    """
    rows = select(table, quantity)
    rows = rows.drop(columns=[n for n in ESTIMATES if n != "mean" and rows[n].isna().all()])
    beside = table
    for name, value in where.items():
        rows = rows[rows[name] == value]
        if name != "group":
            beside = beside[beside[name] == value]
    return along(rows, beside[across], across) if len(rows) else rows


def by_group(quantity: str, groups: Iterable[str] = GROUPS, **more: Any) -> tuple[Curve, ...]:
    """A curve a token group, back to front; ``more`` of each ``Curve``."""
    return tuple(
        Curve(group, quantity, GROUP_LOOKS[group], {"group": group}, **more) for group in groups
    )


def by_series(
    table: pd.DataFrame,
    key: str,
    quantity: str,
    dashed: bool = False,
    where: Mapping[str, object] | None = None,
    **more: Any,
) -> tuple[Curve, ...]:
    """A curve a run, query or the like, back to front, each in a look of its own."""
    curves = []
    for place, name in enumerate(dict.fromkeys(table[key])):
        look = series_look(place) if dashed else series_look(place)._replace(linestyle="-")
        curves.append(Curve(str(name), quantity, look, {key: name, **(where or {})}, **more))
    return tuple(reversed(curves))


def metric_panel(metric: str, title: str, scale: Scale = "zero", **more: Any) -> Panel:
    """Means over tokens of a metric, with the spread of the tokens, by token group."""
    return Panel(title, by_group(metric, spread=True, **more), scale)


# --- on the page ---------------------------------------------------------------------------------

Chart = dict[str, Any]


def charts(declared: Iterable[Panel], table: pd.DataFrame) -> list[Chart]:
    """A chart a panel, as the page's script draws it; panels without a number are left out."""
    made = []
    for panel in declared:
        series = [
            series_of(curve.name, curve.look, rows, curve.estimate, curve.around(rows))
            | ({"hollow": hollow.tolist()} if (hollow := _hollow(curve, rows)).any() else {})
            for curve in reversed(panel.curves)
            if len(rows := curve.rows(table))
        ]
        drawn = chart(panel.title, series, zero=panel.scale not in ("cosine", "near"))
        across = {"across": panel.across.replace("_", " ")} if panel.across != "layer" else {}
        made.append(drawn | across)
    return [drawn for drawn in made if drawn["series"]]


def chart(label: str, series: Sequence[Mapping[str, Any]], zero: bool) -> Chart:
    """One chart: label, ``log`` (how it is first shown), ``zero`` (is on the axis), ``series``."""
    drawn = [line for line in series if any(value is not None for value in line["y"])]
    values = [value for line in drawn for value in line["y"] if value is not None]
    log = zero and min(values, default=0) > 0 and asks_for_log(values)
    return {"label": label, "log": log, "zero": zero, "series": drawn}


def series_of(
    name: str,
    look: GroupLook,
    rows: pd.DataFrame,
    estimate: str = "mean",
    spread: Sequence[str] = (),
) -> dict[str, Any]:
    """One line of a chart.

    Its name, color and dash; x (layers) and y; low and high of its interval, band_low and
    band_high, least and most of the spread, where the rows have them.
    """
    rows = rows.sort_values("layer")
    series = {
        "name": name,
        "color": look.color,
        "dash": _DASHES[look.linestyle],
        "x": [int(x) if float(x).is_integer() else float(x) for x in rows["layer"]],
        "y": _numbers(rows[estimate]),
    }
    around = {
        **dict(zip(("low", "high"), ends_of(estimate), strict=True)),
        **({name: name for name in BAND} if estimate == "mean" else {}),
        **dict(zip(("least", "most"), spread, strict=False)),
    }
    series |= {name: _numbers(rows[end]) for name, end in around.items() if end in rows}
    return series


def _numbers(column: "pd.Series[Any]") -> list[float | None]:
    """Finite numbers with six digits, None for the rest: what a screen can show."""
    values = pd.to_numeric(column, errors="coerce")
    return [float(f"{v:.6g}") if abs(v) < float("inf") else None for v in values]


# --- on paper ------------------------------------------------------------------------------------


def draw_panels(
    title: str,
    declared: Sequence[Panel],
    table: pd.DataFrame,
    ax: Given = None,
    *,
    columns: int,
    height: float,
    legend: Sequence[Curve] = (),
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> Figure:
    """Panels with one legend below, and with their own where they name other things.

    Args:
        title: the figure's title.
        declared: the panels, row by row.
        table: what they draw.
        ax: an axes a panel; None: a figure of its own.
        columns: panels side by side.
        height: of a row of panels, in inches.
        legend: what the legend below names, where a curve alone would not tell it.
        ranges: by ``Panel.judged``, in which range its curves hold.
    """
    rows = -(-len(declared) // columns)
    size = DOUBLE_WIDTH, height * rows + 0.6
    drawing, grid = panels(title, *size, (rows, columns), ax, sharex=True)
    last = int(table["layer"].max())
    for letter, panel, axes in zip(ascii_lowercase, declared, grid.flat, strict=False):
        axes.set_title(f"({letter}) {panel.title}", loc="left")
        draw_panel(axes, panel, table, last, (ranges or {}).get(panel.judged))
        if panel.has_legend and not legend and axes.get_lines():
            bottom, top = axes.get_ylim()
            if axes.get_yscale() == "linear" and panel.scale not in ("share", "cosine"):
                axes.set_ylim(bottom, top + 0.15 * len(panel.curves) * (top - bottom))  # room
            axes.legend(loc="best", fontsize=_LEGEND_SIZE)
    for axes in grid.flat[len(declared) :]:
        axes.set_axis_off()
    for place, axes in enumerate(grid.flat[: len(declared)]):
        above = place + columns < len(declared)
        axes.tick_params(labelbottom=not above)
        axes.set_xlabel("" if above else _ACROSS[declared[place].across])
    handles = handles_of(declared, table, grid.flat, legend)
    if any(panel.judged in (ranges or {}) for panel in declared):
        handles.append(Patch(color=_HOLDS, label="range in which each line holds"))
    legend_below(drawing, grid, handles)
    return drawing


def handles_of(
    declared: Sequence[Panel],
    table: pd.DataFrame,
    drawn: Iterable[Axes],
    legend: Sequence[Curve] = (),
) -> list[Artist]:
    """What a legend below panels says: groups, or ``legend``, and what is filled and outlined."""
    curves = [curve for panel in declared for curve in panel.curves]
    handles = _named(legend or curves, table)
    if any(curve.around(curve.rows(table)) for curve in curves if curve.quantity):
        handles.append(Patch(color="0.87", label="5-95 % of tokens"))
    handles += ends_drawn(drawn, {curve.across for curve in curves})
    for doubted in dict.fromkeys(
        c.doubted for c in curves if c.doubted and _hollow(c, c.rows(table)).any()
    ):
        look: dict[str, Any] = {"marker": "o", "color": "0.4"} | _HOLLOW
        handles.append(Line2D([], [], **look, label=_DOUBTS.get(doubted, "below resolution")))
    return handles


def draw_panel(
    axes: Axes,
    panel: Panel,
    table: pd.DataFrame,
    last: int,
    holds: tuple[float, float] | None = None,
    **more: Any,
) -> None:
    """Draw the curves of a panel and set its axes; ``more`` is for the lines."""
    for curve in panel.curves:
        rows = curve.rows(table)
        rows = rows[rows[curve.estimate].notna()]
        if rows.empty:
            continue
        if ends := curve.around(rows):
            low, high = (rows[end] for end in ends)
            colour = curve.look.color
            axes.fill_between(rows["layer"], low, high, color=colour, alpha=0.13, linewidth=0)
        size = 4 if ends else 3
        draw_estimate(axes, rows, curve.estimate, curve.look, curve.name, markersize=size, **more)
        doubted = rows[_hollow(curve, rows)]
        if len(doubted):  # an empty line lies at the corner of the figure, and asks for room there
            hollow: dict[str, Any] = curve.look._asdict() | _HOLLOW
            axes.plot(doubted["layer"], doubted[curve.estimate], **hollow)
    if panel.across == "layer":
        mark_layers(axes, last)
    elif panel.across == "training_step":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        mark_doses(
            axes, sorted({dose for curve in panel.curves for dose in curve.rows(table)["layer"]})
        )
    values = panel.values(table)
    if not values.size:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no number", transform=axes.transAxes, ha="center")
        return
    _set_scale(axes, panel.scale, values)
    if holds is not None:
        _add_range(axes, *holds)


def _set_scale(axes: Axes, scale: Scale, values: NDArray[np.float64]) -> None:
    if scale == "cosine":
        limit_cosine([axes], values)
    elif scale == "difference":
        axes.axhline(0.0, color="0.4", linewidth=0.9, zorder=0)
    elif scale in ("zero", "ratio") and values.min() > 0 and asks_for_log(values):
        use_log(axes, "y", values)
    elif scale == "zero":
        axes.set_ylim(bottom=0)
    elif scale == "share":
        top = values.max() * 1.08 or 1.0  # room above a line at zero, and no line on the axis
        axes.set_ylim(-0.04 * top, top)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        if not values.any():
            axes.set_yticks([0.0])  # no other number was seen


def limit_cosine(drawn: Iterable[Axes], values: ArrayLike) -> None:
    """Let the axes end at exactly 1, the largest cosine, and begin below the smallest of all."""
    lowest = float(np.nanmin(np.append(np.asarray(values, float), 1.0)))
    for axes in drawn:
        axes.set_ylim(lowest - 0.05 * max(1 - lowest, 1e-3), 1.0)
        for line in axes.get_lines():  # those along the top are not cut in half, bands may leave
            line.set_clip_on(line.get_label() == f"_{BAND_WORDS}")


def _add_range(axes: Axes, low: float, high: float) -> None:
    """The range in which the number holds; its ends are always in sight."""
    ends = [end for end in (low, high) if np.isfinite(end)]
    axes.update_datalim([(0, end) for end in ends], updatex=False)
    axes.autoscale_view(scalex=False)
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top)
    axes.axhspan(max(low, bottom), min(high, top), color=_HOLDS, zorder=0, linewidth=0)


def _hollow(curve: Curve, rows: pd.DataFrame) -> "pd.Series[bool]":
    """Where a number is below what the stored states resolve."""
    if curve.doubted not in rows:
        return pd.Series(False, rows.index)
    return rows[curve.doubted].eq(True) & rows[curve.estimate].notna()


def _named(curves: Sequence[Curve], table: pd.DataFrame) -> list[Artist]:
    """What tells the curves of all panels apart, front first; only what is drawn."""
    named = {
        curve.name: curve for curve in curves if curve.name in GROUP_LOOKS or not curve.quantity
    }
    held = {
        name: curve
        for name, curve in named.items()
        if all((table[column] == value).any() for column, value in curve.where.items())
    }
    order = [name for name in reversed(GROUPS) if name in held]
    order += [name for name in held if name not in order]
    return [Line2D([], [], **held[name].look._asdict(), label=name) for name in order]
