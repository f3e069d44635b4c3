"""The figure of norm and cosine, and what it shares with that of the angular velocity."""

from functools import cache

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from support import made_tables
from support.made_bands import with_bands

from normprobe.measurements.layers.figures import layers as layers_figure
from normprobe.measurements.layers.figures import turning
from normprobe.report.figures.lines import BAND_WORDS, INTERVAL_WORDS
from normprobe.report.figures.style import GROUP_LOOKS

TABLE = made_tables.layers()


@cache
def drawn(module):
    return module.figure("t", TABLE)


def panels(figure):
    return figure.axes[0], figure.axes[1]


def line(axes, group):
    return next(line for line in axes.get_lines() if line.get_label() == group)


@pytest.mark.parametrize("group", ["visual", "text", "special", "structural"])
@pytest.mark.parametrize(
    ("module", "panel", "metric"),
    [
        (layers_figure, 0, "norm"),
        (layers_figure, 1, "cosine"),
        (turning, 0, "angle"),
        (turning, 1, "relative_update"),
    ],
)
def test_lines_hold_the_means(group, module, panel, metric):
    axes = drawn(module).axes[panel]
    rows = TABLE[(TABLE["group"] == group) & TABLE[f"{metric}_mean"].notna()]
    curve = line(axes, group)
    np.testing.assert_array_equal(curve.get_xdata(), rows["layer"])
    np.testing.assert_array_equal(curve.get_ydata(), rows[f"{metric}_mean"])
    assert curve.get_xdata()[0] == (0 if metric == "norm" else 1)
    assert to_hex(curve.get_color()) == GROUP_LOOKS[group].color.lower()


def test_bands_hold_the_quantiles():
    norm, _ = panels(drawn(layers_figure))
    bands = [band for band in norm.collections if isinstance(band, PolyCollection)]
    assert len(bands) == 4
    rows = TABLE[TABLE["group"] == "visual"]
    ys = bands[-1].get_paths()[0].vertices[:, 1]  # visual is drawn last, on top
    assert ys.min() == rows["norm_q05"].min()
    assert ys.max() == rows["norm_q95"].max()


def test_log_axis_only_where_the_range_asks():
    norm, cosine = panels(drawn(layers_figure))
    assert norm.get_yscale() == "log"
    assert cosine.get_yscale() == "linear"
    narrow = TABLE.copy()
    columns = [c for c in narrow if c.startswith("norm_")]
    narrow[columns] = 10 + narrow[columns] / 10
    norm, _ = panels(layers_figure.figure("t", narrow))
    assert norm.get_yscale() == "linear"
    assert norm.get_ylim()[0] == 0


def test_the_cosine_axis_ends_at_one_and_shows_everything():
    for lowest in (0.5, -0.8):
        table = TABLE[TABLE["group"] != "non_visual"].copy()  # in the CSV, but not drawn
        table.loc[(table["group"] == "text") & (table["layer"] == 1), "cosine_q05"] = lowest
        _, cosine = panels(layers_figure.figure("t", table))
        bottom, top = cosine.get_ylim()
        assert top == 1.0
        assert bottom < min(lowest, table["cosine_q05"].min())


@pytest.mark.parametrize("depth", [1, 6, 28, 32, 80, 126])
def test_ticks_are_whole_layers(depth):
    norm, _ = panels(layers_figure.figure("t", made_tables.layers(depth)))
    ticks = norm.get_xticks()
    assert all(float(tick).is_integer() for tick in ticks)
    assert 0 in ticks
    assert 2 <= len(ticks) <= 10
    assert norm.get_xlim()[1] >= depth


def test_gaps_and_infinities_do_not_hide_the_rest():
    table = TABLE.copy()
    table.loc[table["layer"] == 2, ["norm_q05", "cosine_q05"]] = np.nan
    table.loc[table["layer"] == 3, "norm_q95"] = np.inf
    norm, cosine = panels(layers_figure.figure("t", table))
    assert np.isfinite([*norm.get_ylim(), *cosine.get_ylim()]).all()


def test_groups_differ_in_colour_marker_and_line():
    looks_drawn = [GROUP_LOOKS[group] for group in ("visual", "text", "special", "structural")]
    for looks in zip(*looks_drawn, strict=True):
        assert len(set(looks)) == 4


def test_intervals_of_the_means_are_bands_of_their_own():
    table = TABLE.assign(
        norm_mean_ci_low=TABLE["norm_mean"] * 0.95, norm_mean_ci_high=TABLE["norm_mean"] * 1.05
    )
    figure = layers_figure.figure("t", table)
    norm, cosine = panels(figure)
    bands = [band for band in norm.collections if isinstance(band, PolyCollection)]
    assert len(bands) == 8
    rows = table[table["group"] == "visual"]
    ys = bands[-1].get_paths()[0].vertices[:, 1]
    assert ys.min() == rows["norm_mean_ci_low"].min()
    assert ys.max() == rows["norm_mean_ci_high"].max()
    assert len(cosine.collections) == 4  # of the tokens: the table has no other interval
    assert INTERVAL_WORDS in [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("module", [layers_figure, turning])
def test_bands_of_all_layers_are_outlined_and_named(module):
    means = [f"{metric}_mean" for metric in ("norm", "cosine", "angle", "relative_update")]
    figure = module.figure("t", with_bands(TABLE, means))
    for axes in panels(figure):
        outlines = [line for line in axes.get_lines() if line.get_label() == f"_{BAND_WORDS}"]
        colors = {to_hex(line.get_color()) for line in outlines}
        assert len(outlines) == len(colors) == 4  # a band for each group, in its colour
        assert all(line.get_clip_on() for line in outlines)
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named[5:] == [INTERVAL_WORDS, BAND_WORDS]


def test_intervals_of_a_single_image_are_not_drawn():
    table = TABLE.assign(norm_mean_ci_low=np.nan, norm_mean_ci_high=np.nan)
    figure = layers_figure.figure("t", table)
    assert len(figure.axes[0].collections) == 4
    assert len(figure.legends[0].get_texts()) == 5
