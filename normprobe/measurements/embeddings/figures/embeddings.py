"""Norms of embedding rows: their distribution, and the names of the loudest."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.cells import cell_len, set_cell_size

from normprobe.report.figures.lines import Given, entries, legend_below, panels
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    GROUP_LOOKS,
    asks_for_log,
    drawable,
    use_log,
)
from normprobe.report.readable import count, readable_token, significant
from normprobe.schema import NONZERO_ROWS, SPECIAL

TABLES = ("embeddings", "tokens", "histogram")

_X_LABEL = "L2 norm of an embedding row"
_HEIGHT = 2.2  # inches a panel
_NAMED = 8  # as many names as fit beside a panel
_NAME_WIDTH = 24  # characters
_NAME_COLUMN = 1.03  # x of the names, in widths of the panel


def figure(
    title: str,
    embeddings: pd.DataFrame,
    tokens: pd.DataFrame,
    histogram: pd.DataFrame,
    ax: Given = None,
) -> Figure:
    """A histogram for each table, with a log count axis and the loudest tokens named."""
    names = list(dict.fromkeys(histogram["table"]))
    count = max(1, len(names))
    drawing, grid = panels(title, DOUBLE_WIDTH, _HEIGHT * count + 0.5, (count, 1), ax)
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
    rows = embeddings[(embeddings["table"] == table) & (embeddings["rows"] == NONZERO_ROWS)]
    if rows.empty:
        return
    mean = float(rows["norm_mean"].iloc[0])
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
    named = top.sort_values("rank").head(_NAMED)
    for place, (_, row) in enumerate(named.iterrows()):
        color = GROUP_LOOKS[SPECIAL].color if row["special"] else "0.15"
        axes.annotate(
            f"{significant(float(row['norm']))}  {_name(row)}",
            (float(row["norm"]), 0.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(_NAME_COLUMN, 0.02 + place * 0.96 / (_NAMED - 1)),
            textcoords="axes fraction",
            va="center",
            color=color,
            arrowprops={
                "arrowstyle": "-",
                "linewidth": 0.5,
                "color": color,
                "relpos": (0, 0.5),
                "shrinkA": 2,
                "shrinkB": 0,
            },
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


def _name(row: "pd.Series[str]") -> str:
    token = str(row["token"])
    text = drawable(readable_token(token)) if token else f"row {row['token_id']}"
    if cell_len(text) > _NAME_WIDTH:
        text = set_cell_size(text, _NAME_WIDTH - 1).rstrip() + "…"
    return text
