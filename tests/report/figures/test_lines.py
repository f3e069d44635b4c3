"""A line, the interval of each layer and the band of all: told apart, named, and in sight."""

import io
from typing import cast

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from PIL import Image
from support.flat import place_of
from support.made_bands import with_bands

from normprobe.report.figures.lines import (
    BAND_WORDS,
    INTERVAL_WORDS,
    draw_estimate,
    ends_drawn,
    in_sight,
    panels,
)
from normprobe.report.figures.style import image_bytes, series_look

LAYERS = 8
TABLE = pd.DataFrame({"layer": range(LAYERS), "n": np.linspace(2.0, 3.0, LAYERS)})
LOOK = series_look(0)


def drawn(table: pd.DataFrame) -> Axes:
    _, grid = panels("made", 3, 2)
    draw_estimate(grid[0, 0], rows_of(table), "mean", LOOK, "made")
    return grid[0, 0]


def rows_of(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the number in a tidy table."""
    return table.rename(columns=lambda name: name if name == "layer" else place_of(name)[1])


def outline(axes: Axes) -> Line2D:
    (found,) = (line for line in axes.get_lines() if line.get_label() == f"_{BAND_WORDS}")
    return found


def legend(axes: Axes) -> list[str]:
    return [str(handle.get_label()) for handle in ends_drawn([axes])]


def test_the_interval_is_filled_and_the_band_outlined() -> None:
    table = with_bands(TABLE, ["n"])
    axes = drawn(table)
    (fill,) = axes.collections
    assert isinstance(fill, PolyCollection)
    heights = fill.get_paths()[0].vertices[:, 1]
    assert heights.min() == table["n_ci_low"].min()
    assert heights.max() == table["n_ci_high"].max()
    line, band = axes.get_lines()
    both = np.asarray(band.get_ydata(), dtype=float)
    np.testing.assert_array_equal(both[:LAYERS], table["n_band_low"])
    np.testing.assert_array_equal(both[LAYERS + 1 : -1], table["n_band_high"])
    np.testing.assert_array_equal(band.get_xdata()[LAYERS + 1 : -1], table["layer"])
    # No colour tells them apart: a dotted line that is thin is no number's own.
    assert same_color(band.get_color(), line.get_color())
    assert band.get_linestyle() != line.get_linestyle()
    assert band.get_linewidth() < line.get_linewidth()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["_ci_", "_band_"], []),
        (["_band_"], [INTERVAL_WORDS]),
        ([], [INTERVAL_WORDS, BAND_WORDS]),
    ],
)
def test_the_legend_names_what_is_drawn_and_nothing_else(
    columns: list[str], words: list[str]
) -> None:
    table = with_bands(TABLE, ["n"])
    for part in columns:
        table = table.loc[:, ~table.columns.str.contains(part)]
    assert legend(drawn(table)) == words
    empty = with_bands(TABLE, ["n"])  # as of one image
    for part in columns:
        empty.loc[:, empty.columns.str.contains(part)] = np.nan
    assert legend(drawn(empty)) == words
    assert len(drawn(empty).get_lines()) == 1 + (BAND_WORDS in words)


def test_neither_is_a_line_of_the_legend_by_itself() -> None:
    assert drawn(with_bands(TABLE, ["n"])).get_legend_handles_labels()[1] == ["made"]


def test_a_band_is_in_sight() -> None:
    table = with_bands(TABLE, ["n"])
    bottom, top = drawn(table).get_ylim()
    assert bottom < table["n_band_low"].min()
    assert top > table["n_band_high"].max()


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_a_band_of_few_images_does_not_press_the_line_flat(scale: str) -> None:
    table = with_bands(TABLE, ["n"]).assign(n_band_low=1e-9, n_band_high=1e9)
    axes = drawn(table)
    axes.set_yscale(scale)
    bottom, top = axes.get_ylim()
    turn = np.log if scale == "log" else np.asarray
    low, high = turn([table["n_ci_low"].min(), table["n_ci_high"].max()])
    assert (high - low) / np.diff(turn([bottom, top])) > 0.25
    assert bottom < table["n_ci_low"].min()
    assert top > table["n_ci_high"].max()
    assert legend(axes) == [INTERVAL_WORDS, f"{BAND_WORDS}, cut off"]
    assert in_sight(rows_of(table), "mean").max() < 5


def test_a_layer_alone_shows_its_interval_and_band() -> None:
    table = with_bands(TABLE, ["n"])
    table.loc[[3, 5], table.columns != "layer"] = np.nan  # only layer 4 has no neighbour
    axes = drawn(table)
    (bar,) = (found for found in axes.collections if isinstance(found, LineCollection))
    (path,) = bar.get_paths()
    assert path.vertices.tolist() == [
        [4, table["n_ci_low"][4]],
        [4, table["n_ci_high"][4]],
    ]
    marked = outline(axes).get_markevery()
    assert outline(axes).get_xydata()[marked].tolist() == [
        [4, table["n_band_low"][4]],
        [4, table["n_band_high"][4]],
    ]


def grey(table: pd.DataFrame) -> NDArray[np.float64]:
    axes = drawn(table)
    axes.set_ylim(1, 4)
    picture = Image.open(io.BytesIO(image_bytes(cast(Figure, axes.figure), "png", dpi=150)))
    return np.asarray(picture.convert("L")) / 255


def test_they_are_told_apart_without_colour() -> None:
    """An interval darkens all within its ends, a band of the same width its ends alone."""
    wide = with_bands(TABLE, ["n"], interval=0.2, band=0.2)
    filled = wide.loc[:, ~wide.columns.str.contains("_band_")]
    outlined = wide.loc[:, ~wide.columns.str.contains("_ci_")]
    darker = [(grey(TABLE) - grey(table) > 0.1).sum() for table in (filled, outlined)]
    assert 0 < 5 * darker[1] < darker[0]
    assert (grey(filled) - grey(wide) > 0.1).sum() > darker[1] / 2  # seen on top of it, too
