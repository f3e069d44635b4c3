"""The figure of massive activations."""

import numpy as np
from normprobe.measurements.layers.figures.massive import figure
from support import made_massive

from normprobe.report.figures.lines import BAND_WORDS
from normprobe.schema import VISUAL

TABLE = made_massive.tables(massive=True)["massive"]


def test_every_line_is_a_column_of_the_table() -> None:
    panels = figure("t", TABLE).axes
    visual = TABLE[TABLE["group"] == VISUAL]
    columns = {
        0: ["top1_share_mean"],
        1: ["top10_share_mean"],
        2: ["massive_mean"],
        3: ["norm_ratio_to_text", "norm_ratio_to_text_without_massive"],
        4: ["angle_ratio_to_text", "angle_ratio_to_text_without_massive"],
        5: ["sink_mean", "high_norm_mean", "still_mean"],
    }
    for place, drawn in columns.items():
        # A band is a line without a name.
        lines = [line for line in panels[place].get_lines() if line.get_label()[0] != "_"]
        for line, column in zip(lines[: len(drawn)], drawn, strict=True):
            np.testing.assert_allclose(line.get_ydata(), visual[column].dropna())
    assert panels[3].get_yscale() == "log"


def test_intervals_are_in_sight() -> None:
    axes = figure("t", TABLE).axes[4]
    ends = TABLE.loc[TABLE["group"] == VISUAL, "angle_ratio_to_text_ci_high"]
    assert axes.get_ylim()[1] > ends.max()


def test_bands_of_shares_are_in_sight() -> None:
    axes = figure("t", TABLE).axes[0]
    bands = TABLE.loc[TABLE["group"] == VISUAL, "top1_share_mean_band_high"]
    (band, _) = (line for line in axes.get_lines() if line.get_label() == f"_{BAND_WORDS}")
    np.testing.assert_array_equal(np.asarray(band.get_ydata())[-1 - len(bands) : -1], bands)
    assert axes.get_ylim()[1] > bands.max()


def test_text_alone_has_no_ratios() -> None:
    panels = figure("t", made_massive.tables(groups=("text",))["massive"]).axes
    told = [[text.get_text() for text in axes.texts] for axes in panels]
    assert told == [[], [], [], ["no number"], ["no number"], ["no number"]]
