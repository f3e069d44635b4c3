"""What is drawn of ``interface``: dots from the vision encoder to the decoder, a visual table."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from normprobe.measurements.interface.table import (
    PROBABILITIES,
    TEXT_ROWS,
    TEXT_TOKENS,
    VISUAL_ROWS,
    VISUAL_TOKENS,
)
from normprobe.report.dots import Dot, Dots, draw_dots
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given, panels
from normprobe.report.figures.style import DOUBLE_WIDTH, GROUP_LOOKS, asks_for_log, use_log
from normprobe.report.readable import count
from normprobe.report.terminal import words
from normprobe.runs.run_folder import RunStore
from normprobe.schema import (
    DECODER_INPUT,
    NONZERO_ROWS,
    OTHER_MEDIA,
    ROW_SCOPES,
    STAGES,
    TABLE_GROUPS,
    TEXT,
    VISUAL,
    VISUAL_EMBEDDING_TABLE,
)
from normprobe.tidy import select, wide


def drawings(_run: RunStore) -> list[Drawing]:
    """The figures of a run of ``interface``."""
    return [
        Drawing("interface", ("interface",), draw_interface),
        Drawing("visual_table", ("histogram",), draw_visual_table),
    ]


# --- from the vision encoder to the decoder input ------------------------------------------------


def draw_interface(title: str, interface: pd.DataFrame, ax: Given = None) -> Figure:
    """Norms from the vision encoder to the decoder input, against the text embeddings."""
    return draw_dots(title, interface_dots(interface), ax)


def interface_dots(interface: pd.DataFrame) -> Dots:
    """The mean norm of every stage and group, from the vision encoder to the text embeddings."""
    norms = norms_by_stage(interface)
    rows = norms[norms["mean"] > 0]
    made = []
    for stage in STAGES:
        here = rows[rows["stage"] == stage]
        for group in (*TABLE_GROUPS[:-1], *ROW_SCOPES):
            made += [_dot(stage, group, row) for _, row in here[here["group"] == group].iterrows()]
    prompt = rows[(rows["stage"] == DECODER_INPUT) & (rows["group"] == TEXT)]["mean"]
    reference = None
    if len(prompt):
        color = GROUP_LOOKS[TEXT].color
        reference = ("the text tokens of the prompts", float(prompt.iloc[0]), color)
    return Dots("L2 norm from vision encoder to decoder input", "L2 norm", made, reference)


def norms_by_stage(interface: pd.DataFrame) -> pd.DataFrame:
    """What is shown of each stage and group: its norm, its width and its ratios, side by side."""
    keys, of_norm = ["stage", "group"], ["mean", "low", "high", "std", "q05", "q50", "q95"]
    beside = [*keys, "hidden_size", "tokens", "ratio_to_prompt", "ratio_to_table"]
    norms = select(interface, "norm")[[*keys, *of_norm]]
    return wide(interface).reindex(columns=beside).merge(norms, "left", keys)


def _dot(stage: str, group: str, row: "pd.Series[Any]") -> Dot:
    # Rows of a table look as its tokens do; those that the paper averages are filled.
    of_table = VISUAL if stage == VISUAL_EMBEDDING_TABLE else TEXT
    return Dot(
        stage=f"{words(stage)} (d = {count(float(row['hidden_size']))})",
        name=words(group),
        look=GROUP_LOOKS.get(group, GROUP_LOOKS[of_table]),
        value=float(row["mean"]),
        interval=(float(row["low"]), float(row["high"])),
        spread=(float(row["q05"]), float(row["q95"])),
        hollow=group in ROW_SCOPES and group != NONZERO_ROWS,
        ratio=float(row["ratio_to_prompt"]) if group in (VISUAL, *OTHER_MEDIA) else np.nan,
    )


# --- a visual table: its rows, the tokens mixed from them, and the text --------------------------

_HEIGHT = 2.8  # inches
_BINS = 60  # at most, over the whole axis
_SOURCES = {
    VISUAL_ROWS: (VISUAL, "--"),
    VISUAL_TOKENS: (VISUAL, "-"),
    TEXT_ROWS: (TEXT, "--"),
    TEXT_TOKENS: (TEXT, "-"),
}


def draw_visual_table(title: str, histogram: pd.DataFrame, ax: Given = None) -> Figure:
    """Shares of rows and tokens by norm, and by how many rows a token is mixed from."""
    drawing, grid = panels(title, DOUBLE_WIDTH, _HEIGHT, (1, 2), ax, width_ratios=(1.6, 1))
    norms, mixed = grid[0]
    norms.set_title("(a) rows of the tables, and tokens", loc="left")
    norms.set_xlabel("L2 norm")
    norms.set_ylabel("share")
    present = [source for source in _SOURCES if (histogram["source"] == source).any()]
    chosen = histogram[histogram["source"].isin(present)]
    ratio = float((histogram["right"] / histogram["left"]).median())
    edges = _edges(chosen["left"].min(), chosen["right"].max(), ratio)
    for source in present:
        group, style = _SOURCES[source]
        rows = histogram[histogram["source"] == source]
        middle, count = _middle(rows), rows["count"].to_numpy(float)
        _stairs(norms, middle, count, edges, GROUP_LOOKS[group].color, style, source)
    if asks_for_log(edges):
        use_log(norms, "x", edges)
    norms.legend(loc="upper center")
    norms.set_ylim(bottom=0)
    norms.margins(y=0.1)

    mixed.set_title("(b) rows that a token is mixed from", loc="left")
    mixed.set_xlabel("1 / ‖p‖²")
    mixed.set_ylabel("share of visual tokens")
    rows = histogram[histogram["source"] == PROBABILITIES]
    if len(rows):
        mixture, count = _middle(rows) ** -2, rows["count"].to_numpy(float)
        edges = _edges(mixture.min() / ratio, mixture.max() * ratio, ratio**2)
        _stairs(mixed, mixture, count, edges, GROUP_LOOKS[VISUAL].color, "-", "")
        if asks_for_log(edges):
            use_log(mixed, "x", edges)
    mixed.set_ylim(bottom=0)
    return drawing


def _middle(rows: pd.DataFrame) -> NDArray[np.float64]:
    left, right = rows["left"].to_numpy(float), rows["right"].to_numpy(float)
    middle: NDArray[np.float64] = np.sqrt(left * right)
    return middle


def _edges(low: float, high: float, ratio: float) -> NDArray[np.float64]:
    """Bins that each hold the same number of the table's own: others would beat against them."""
    bins = round(np.log(high / low) / np.log(ratio))
    together = max(2, -(-bins // _BINS))
    edges: NDArray[np.float64] = low * ratio ** (together * np.arange(-(-bins // together) + 1))
    return edges


def _stairs(
    axes: Axes,
    values: NDArray[np.float64],
    counts: NDArray[np.float64],
    edges: NDArray[np.float64],
    color: str,
    style: str,
    label: str,
) -> None:
    shares = np.histogram(values, edges, weights=counts / counts.sum())[0]
    axes.stairs(shares, edges, color=color, linestyle=style, label=label or None, linewidth=1.2)
