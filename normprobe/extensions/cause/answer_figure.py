"""Does inertia cost answers? What more turning gains and less of it loses, controls beneath."""

from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from normprobe.extensions.cause.caveats import OFF
from normprobe.extensions.cause.effect_numbers import base_of, by_turning, on_map
from normprobe.report.figures.lines import Given, entries, legend_below, panels
from normprobe.report.figures.style import DOUBLE_WIDTH, GROUP_LOOKS, GroupLook, drawable
from normprobe.schema import VISUAL
from normprobe.tidy import BAND, QUANTITY, select

#: Outcome: its unit, and what a loss of it is times.
_OUTCOMES = {"nll": ("nats a token", 1.0), "accuracy": ("points", -100.0)}
#: What doses are read against, beneath them.
_CONTROLS = ("blank", "freeze-text", "random-updates", "scale-text", "placebo")
_FROZEN = ("freeze", "freeze-attention", "freeze-mlp")
_CONTROL = GroupLook("#8c8c8c", "D", "")
_THICK = "95 % band over all of them"
_FRAME, _LINE, _TITLE = 0.9, 0.17, 0.4  # inches: legend and title; a row; above each panel


class Side(NamedTuple):
    """A panel: what is done to turning, and the answers' rows."""

    title: str
    sign: int  # of a loss
    rows: pd.DataFrame  # of doses, then of controls


def sides(cause: pd.DataFrame) -> list[Side]:
    """What more turning gains, and what less of it loses; none where no answer is right."""
    more, less = by_turning(cause)
    whole = cause[(cause["layer"] == 0) & cause["mean"].notna()]
    named = whole["intervention"].map(base_of)
    frozen, controls = whole[named.isin(_FROZEN)], whole[named.isin(_CONTROLS)]
    found = []
    for title, sign, parts in (
        ("gained by more turning", -1, [more]),
        ("lost by less turning", 1, [less, frozen]),
    ):
        doses = pd.concat(parts)
        doses = doses[doses[QUANTITY].isin(_OUTCOMES)]
        if len(doses):
            doses = doses.sort_values(["intervention", "dose"])
            rows = pd.concat([doses, controls[controls[QUANTITY].isin(_OUTCOMES)]])
            found.append(Side(title, sign, rows.assign(name=named_interventions(rows))))
    return found


def named_interventions(rows: pd.DataFrame) -> "pd.Series[str]":
    """``scale 0.5``; an intervention without a dose by its name."""
    doses = rows["dose"].map(lambda dose: "" if np.isnan(dose) else f" {dose:g}")
    return rows["intervention"] + doses


def draw_answer(title: str, cause: pd.DataFrame, ax: Given = None) -> Figure:
    """What each dose gains or loses in answers, with its band."""
    columns = sides(cause)
    known = [
        name for name in _OUTCOMES if any((each.rows[QUANTITY] == name).any() for each in columns)
    ]
    longest = max(each.rows["name"].nunique() for each in columns)
    height = _FRAME + len(known) * (_TITLE + _LINE * longest)
    drawing, grid = panels(title, DOUBLE_WIDTH, height, (len(known), len(columns)), ax)
    for across, side in zip(grid.T, columns, strict=True):
        for axes, quantity in zip(across, known, strict=True):
            unit, scale = _OUTCOMES[quantity]
            axes.set_xlabel(unit)
            _draw_side(axes, side, quantity, scale * side.sign)
        across[0].set_title(side.title, loc="left")
    told = entries(grid) | {_THICK: Patch(color="0.75", label=_THICK)}
    legend_below(drawing, grid, list(told.values()))
    return drawing


def _draw_side(axes: Axes, side: Side, quantity: str, scale: float) -> None:
    rows = select(side.rows, quantity)
    names = list(dict.fromkeys(rows["name"]))
    control = rows["intervention"].map(base_of).isin(_CONTROLS).to_numpy()
    axes.axvline(0, color="0.4", linewidth=0.9, zorder=0)
    if control.any():
        axes.axhline(names.index(rows["name"][control].iloc[0]) - 0.5, color="0.8", linewidth=0.7)
    for is_control, look, label in (
        (False, GROUP_LOOKS[VISUAL], "visual tokens"),
        (True, _CONTROL, "control"),
    ):
        of_these = rows[control == is_control]
        y = np.array([names.index(name) for name in of_these["name"]], float)
        ends = of_these[[*BAND]].to_numpy(float).T * scale
        axes.hlines(y, *ends, color=look.color, alpha=0.4, linewidth=3)
        for hollow in (False, True):
            some = on_map(of_these).to_numpy() != hollow
            if some.any():
                axes.plot(
                    of_these["mean"][some] * scale,
                    y[some],
                    look.marker,
                    color=look.color,
                    linestyle="",
                    markersize=4,
                    markerfacecolor="white" if hollow else look.color,
                    label=f"{label}, {OFF}" if hollow else label,
                )
    sizes = rows["mean"].abs() * abs(scale)
    usual = sizes[~control & (sizes > 0)].median()
    # A grey picture may cost a hundred times as much as a dose.
    if quantity == "nll" and sizes.max() > 20 * usual:
        least = 10.0 ** np.floor(np.log10(usual))
        axes.set_xscale("symlog", linthresh=least)
        axes.set_xlabel(f"{axes.get_xlabel()}, linear to {least:g}")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yticks(range(len(names)), labels=[drawable(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
