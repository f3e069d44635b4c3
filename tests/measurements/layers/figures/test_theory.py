"""A panel a number: its range, if any, is that of every line in it."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import same_color
from normprobe.measurements.layers.figures.theory import figure
from normprobe.measurements.layers.theory_panels import PANELS
from support import made_tables

from normprobe.measurements.layers.assumptions import CRITERIA, assumptions_table
from normprobe.report.figures.lines import BAND_WORDS

RANGES = {criterion.column: (criterion.low, criterion.high) for criterion in CRITERIA}


def panels_of(theory: pd.DataFrame) -> list[Axes]:
    return figure("made", theory, assumptions_table(theory)).axes


def band_of(axes: Axes) -> tuple[float, float] | None:
    """Where the yellow band begins and ends."""
    bands = [patch for patch in axes.patches if same_color(patch.get_facecolor()[:3], "#F7EFC6")]
    if not bands:
        return None
    (band,) = bands
    return band.get_y(), band.get_y() + band.get_height()


def test_every_judged_number_is_drawn_once() -> None:
    drawn = [line.column for panel in PANELS for line in panel.lines]
    assert len(set(drawn)) == len(drawn)
    assert set(RANGES) <= set(drawn)


def test_a_band_is_the_range_of_every_line_of_its_panel() -> None:
    axes = panels_of(made_tables.theory())
    assert len(axes) == len(PANELS)
    for panel, axis in zip(PANELS, axes, strict=True):
        band = band_of(axis)
        assert (band is not None) == bool(panel.judged), panel.title
        if band is None:
            assert not {line.column for line in panel.lines} & set(RANGES)
            continue
        bottom, top = axis.get_ylim()
        for line in panel.lines:
            low, high = RANGES[line.column]
            assert band == pytest.approx((max(low, bottom), min(high, top))), panel.title


def test_lines_and_intervals_are_those_of_the_table() -> None:
    theory = made_tables.theory()
    for panel, axis in zip(PANELS, panels_of(theory), strict=True):
        bands = [line for line in axis.get_lines() if line.get_label() == f"_{BAND_WORDS}"]
        lines = [line for line in axis.get_lines() if line not in bands]
        for line, drawn in zip(panel.lines, bands, strict=True):
            ends = theory[["layer", f"{line.column}_band_low", f"{line.column}_band_high"]].dropna()
            known = np.asarray(drawn.get_ydata(), dtype=float)
            np.testing.assert_allclose(known[np.isfinite(known)], ends.to_numpy()[:, 1:].T.ravel())
        for line, drawn in zip(panel.lines, lines, strict=True):
            expected = theory[["layer", line.column]].dropna().to_numpy()
            np.testing.assert_allclose(drawn.get_xydata(), expected)
        for line, drawn in zip(panel.lines, axis.collections, strict=True):
            heights = drawn.get_paths()[0].vertices[:, 1]
            assert heights.min() == pytest.approx(theory[f"{line.column}_ci_low"].min())
            assert heights.max() == pytest.approx(theory[f"{line.column}_ci_high"].max())


def test_a_panel_without_a_number_says_so() -> None:
    axes = panels_of(made_tables.theory(lag_angle_mean=np.nan, cosine_residual_mean=np.nan))
    for axis in axes[-2:]:
        assert [text.get_text() for text in axis.texts] == ["no number"]
        assert not axis.get_yticks().size
        assert band_of(axis) is None


def test_one_layer_and_one_image_can_be_drawn() -> None:
    theory = made_tables.theory(1)
    theory.loc[:, theory.columns.str.contains("_ci_|_band_")] = np.nan
    for panel, axis in zip(PANELS, panels_of(theory), strict=True):
        assert len(axis.get_lines()) == len(panel.lines)
