"""What is drawn of ``embeddings``: norms of the rows, and how far they moved from a base model."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from rich.cells import cell_len, set_cell_size

from normprobe.measurements.embeddings.words import of_nonzero
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given, entries, legend_below, panels
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    GROUP_LOOKS,
    asks_for_log,
    drawable,
    name_log_ticks,
    use_log,
)
from normprobe.report.readable import count, readable_token, significant
from normprobe.runs.run_folder import RunStore
from normprobe.schema import SPECIAL, TEXT, VISUAL


def drawings(_run: RunStore) -> list[Drawing]:
    """The figures of a run of ``embeddings``."""
    return [
        Drawing("embeddings", ("embeddings", "tokens", "histogram"), draw_embeddings),
        Drawing("shift", ("shift",), draw_shift),
    ]


def _name(token: str, longest: int) -> str:
    """A token as it can be drawn, cut to so many characters."""
    text = drawable(readable_token(token))
    if cell_len(text) > longest:
        text = set_cell_size(text, longest - 1).rstrip() + "\u2026"
    return text


# --- rows of the tables --------------------------------------------------------------------------

_X_LABEL = "L2 norm of an embedding row"
_TABLE_HEIGHT = 2.2  # inches a panel
_LOUDEST = 8  # as many names as fit beside a panel
_LOUDEST_WIDTH = 24  # characters of a name
_NAME_COLUMN = 1.03  # x of the names, in widths of the panel


def draw_embeddings(
    title: str,
    embeddings: pd.DataFrame,
    tokens: pd.DataFrame,
    histogram: pd.DataFrame,
    ax: Given = None,
) -> Figure:
    """A histogram for each table, with a log count axis and the loudest tokens named."""
    names = list(dict.fromkeys(histogram["table"]))
    count = max(1, len(names))
    drawing, grid = panels(title, DOUBLE_WIDTH, _TABLE_HEIGHT * count + 0.5, (count, 1), ax)
    for axes, name in zip(grid.flat, names, strict=False):
        axes.set_xlabel(_X_LABEL)
        _draw_histogram(axes, histogram[histogram["table"] == name], str(name))
        _draw_mean(axes, embeddings, str(name))
        _name_loudest(axes, tokens[(tokens["table"] == name) & (tokens["end"] == "top")])
        axes.set_ylabel(f"rows of the {name} table")
    legend_below(drawing, grid, list(entries(grid).values()))
    return drawing


def _draw_histogram(axes: Axes, bins: pd.DataFrame, table: str) -> None:
    zero = bins["right"] <= 0
    zero_rows = int(bins.loc[zero, "count"].sum())
    if zero_rows:
        axes.set_xlabel(f"{_X_LABEL} ({count(zero_rows)} zero rows not drawn)")
    filled = bins[~zero & (bins["count"] > 0)]
    if asks_for_log(filled["right"]) and (filled["left"] > 0).all():
        use_log(axes, "x", filled["right"])
    use_log(axes, "y", filled["count"])
    usual = GROUP_LOOKS[table].color if table in GROUP_LOOKS else "0.5"
    for special, color in ((False, usual), (True, GROUP_LOOKS[SPECIAL].color)):
        rows = filled[filled["special"].eq(special)]
        if rows.empty:
            continue
        axes.bar(
            rows["left"],
            rows["count"],
            width=rows["right"] - rows["left"],
            align="edge",
            label="special tokens" if special else f"{table} table",
            facecolor="none" if special else color,
            edgecolor=color,
            hatch="/////" if special else None,
            alpha=1.0 if special else 0.55,
            linewidth=0.6 if special else 0,
        )
    # One row is a visible bar, not a line on the axis.
    axes.set_ylim(bottom=0.5)


def _draw_mean(axes: Axes, embeddings: pd.DataFrame, table: str) -> None:
    mean = of_nonzero(embeddings, table)
    if mean != mean:
        return
    axes.axvline(mean, color="0.15", linestyle="--", linewidth=0.9, label="mean")
    axes.annotate(
        f"mean {significant(mean)}",
        (mean, 1.0),
        xycoords=axes.get_xaxis_transform(),
        xytext=(3, 1),
        textcoords="offset points",
    )


def _name_loudest(axes: Axes, top: pd.DataFrame) -> None:
    """Names in a column beside the panel, each with a line to its norm on the axis.

    The loudest, which lies farthest right, has the lowest name: so no two lines cross.
    """
    named = top.sort_values("rank").head(_LOUDEST)
    for place, (_, row) in enumerate(named.iterrows()):
        color = GROUP_LOOKS[SPECIAL].color if row["special"] else "0.15"
        token = str(row["token"])
        name = _name(token, _LOUDEST_WIDTH) if token else f"row {row['token_id']}"
        axes.annotate(
            f"{significant(float(row['norm']))}  {name}",
            (float(row["norm"]), 0.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(_NAME_COLUMN, 0.02 + place * 0.96 / (_LOUDEST - 1)),
            textcoords="axes fraction",
            va="center",
            color=color,
            arrowprops=_line(color, text_end=0, gaps=(2, 0)),
            annotation_clip=False,
        )
        axes.plot(
            [row["norm"]],
            [0],
            transform=axes.get_xaxis_transform(),
            color=color,
            marker="^" if row["special"] else "o",
            markersize=2.5,
            clip_on=False,
        )


def _line(color: Any, text_end: int, gaps: tuple[int, int]) -> dict[str, Any]:
    """A thin line from one end of a name (0: left, 1: right) to its dot; gaps in points."""
    ends = {"relpos": (text_end, 0.5), "shrinkA": gaps[0], "shrinkB": gaps[1]}
    return {"arrowstyle": "-", "linewidth": 0.5, "color": color, **ends}


# --- beside a base model -------------------------------------------------------------------------

_SHIFT_HEIGHT = 3.2  # inches
_BINS = 80
_MOVED = 4  # tokens that are named in the plot
_NAME_WIDTH = 18  # characters
_NAME_LINE = 0.065  # of the height of the panel
_NAME_END = 0.52  # where names end, in widths of the panel: no line crosses one
_COLOR = GROUP_LOOKS[TEXT].color
_OUTLIER = GROUP_LOOKS[VISUAL].color


def draw_shift(title: str, shift: pd.DataFrame, ax: Given = None) -> Figure:
    """Norm in the model against norm in the base, and how far the rows moved."""
    drawing, grid = panels(title, DOUBLE_WIDTH, _SHIFT_HEIGHT, (1, 2), ax, width_ratios=(1.15, 1))
    norms, distances = grid[0]
    shared = shift[shift["norm"].notna() & shift["base_norm"].notna()]
    _draw_norms(drawing, norms, shared)
    _draw_distances(distances, shared)
    legend_below(drawing, grid, list(entries(grid).values()))
    return drawing


def _draw_norms(drawing: Figure, axes: Axes, shared: pd.DataFrame) -> None:
    """Counts of tokens; 150,000 points would hide each other and fill the PDF."""
    axes.set_title("(a) norm of each shared token", loc="left")
    values = shared[["base_norm", "norm"]].to_numpy(float)
    high = float(values.max()) * 1.05
    counts, x, y = np.histogram2d(values[:, 0], values[:, 1], bins=_BINS, range=[[0, high]] * 2)
    mesh = axes.pcolormesh(
        x,
        y,
        np.where(counts > 0, counts, np.nan).T,
        norm=LogNorm(1, max(2, counts.max())),
        cmap=ListedColormap(colormaps["Blues"](np.linspace(0.3, 1.0, 64))),
        rasterized=True,
    )
    # One token is a single small pixel: the ones that matter are marked.
    far = shared.iloc[(shared["norm"] - shared["base_norm"]).abs().argsort()[::-1][:_MOVED]]
    axes.axline((0, 0), slope=1, color="0.4", linestyle="--", linewidth=0.8, label="unchanged")
    moved = "norm changed most"
    axes.plot(far["base_norm"], far["norm"], "o", color=_OUTLIER, markersize=3, label=moved)
    _name_tokens(axes, far)
    axes.set_xlim(0, high)
    axes.set_ylim(0, high * 1.3)  # room for the names
    axes.set_xlabel("L2 norm in the base")
    axes.set_ylabel("L2 norm in the model")
    bar = drawing.colorbar(mesh, ax=axes, label="tokens", pad=0.01)
    name_log_ticks(bar.ax.yaxis, [1, max(2, counts.max())])


def _name_tokens(axes: Axes, far: pd.DataFrame) -> None:
    """Names in a column at the upper left, in the order of heights, each with a line to its dot."""
    named = far.sort_values("norm", ascending=False)
    for place, (_, row) in enumerate(named.iterrows()):
        axes.annotate(
            _name(str(row["token"]), _NAME_WIDTH),
            (float(row["base_norm"]), float(row["norm"])),
            xytext=(_NAME_END, 0.98 - _NAME_LINE * place),
            textcoords="axes fraction",
            ha="right",
            va="top",
            color=_OUTLIER,
            arrowprops=_line(_OUTLIER, text_end=1, gaps=(1, 2)),
        )


def _draw_distances(axes: Axes, shared: pd.DataFrame) -> None:
    """The distance of the rows; the change of norm where the hidden sizes differ."""
    known = shared["distance"].notna().any()
    name = "distance" if known else "norm_change"
    values = shared[name].dropna().to_numpy(float)
    still = int((values == 0).sum()) if known else 0
    moved = values[values > 0] if known else values
    label = "L2 distance from the base row" if known else "norm in model - norm in base"
    axes.set_title("(b) how far the rows moved" if known else "(b) change of norm", loc="left")
    axes.set_xlabel(label)
    axes.set_ylabel("shared tokens")
    if not moved.size:
        axes.text(0.5, 0.5, "no row moved", transform=axes.transAxes, ha="center")
        return
    if known and asks_for_log(moved):
        bins = np.geomspace(moved.min() / 1.001, moved.max() * 1.001, _BINS // 2)
        use_log(axes, "x", moved)
    else:
        bins = np.linspace(moved.min(), moved.max() * 1.001 + 1e-12, _BINS // 2)
    counts, edges = np.histogram(moved, bins)
    axes.stairs(counts, edges, fill=True, color=_COLOR, alpha=0.55, baseline=0.5)
    use_log(axes, "y", counts[counts > 0])
    axes.set_ylim(bottom=0.5)
    middle = float(np.median(values))
    if middle > 0 or not known:
        axes.axvline(middle, color="0.15", linestyle="--", linewidth=0.9)
        label += f"\ndashed: median {significant(middle, 3)}"
    if still:
        label += f"\n{count(still)} did not move"
    axes.set_xlabel(label)
