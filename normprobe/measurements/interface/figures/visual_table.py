"""A visual embedding table: norms of its rows, of the tokens mixed from them, and of the text."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normprobe.report.figures.lines import Given, panels
from normprobe.report.figures.style import DOUBLE_WIDTH, GROUP_LOOKS, asks_for_log, use_log
from normprobe.schema import TEXT, VISUAL

TABLES = ("histogram",)

_HEIGHT = 2.8  # inches
_BINS = 60  # at most, over the whole axis
_SOURCES = {
    "visual table rows": (VISUAL, "--"),
    "visual tokens": (VISUAL, "-"),
    "text table rows": (TEXT, "--"),
    "text tokens": (TEXT, "-"),
}


def figure(title: str, histogram: pd.DataFrame, ax: Given = None) -> Figure:
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
    rows = histogram[histogram["source"] == "probabilities"]
    if len(rows):
        mixture, count = _middle(rows) ** -2, rows["count"].to_numpy(float)
        edges = _edges(mixture.min() / ratio, mixture.max() * ratio, ratio**2)
        _stairs(mixed, mixture, count, edges, GROUP_LOOKS[VISUAL].color, "-", "")
        if asks_for_log(edges):
            use_log(mixed, "x", edges)
    mixed.set_ylim(bottom=0)
    return drawing


def _middle(rows: pd.DataFrame) -> np.ndarray:
    left, right = rows["left"].to_numpy(float), rows["right"].to_numpy(float)
    middle: np.ndarray = np.sqrt(left * right)
    return middle


def _edges(low: float, high: float, ratio: float) -> np.ndarray:
    """Bins that each hold the same number of the table's own: others would beat against them."""
    bins = round(np.log(high / low) / np.log(ratio))
    together = max(2, -(-bins // _BINS))
    edges: np.ndarray = low * ratio ** (together * np.arange(-(-bins // together) + 1))
    return edges


def _stairs(
    axes: Axes,
    values: np.ndarray,
    counts: np.ndarray,
    edges: np.ndarray,
    color: str,
    style: str,
    label: str,
) -> None:
    shares = np.histogram(values, edges, weights=counts / counts.sum())[0]
    axes.stairs(shares, edges, color=color, linestyle=style, label=label or None, linewidth=1.2)
