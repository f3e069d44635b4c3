"""The figure of ``interface``."""

import numpy as np
import pytest
from normprobe.measurements.interface.figures.interface import figure
from support import made_tables

TABLE = made_tables.interface()


def dots(axes):
    """The lines that are a single point."""
    return [line for line in axes.get_lines() if len(line.get_xdata()) == 1]


def test_dots_lie_at_the_means_on_a_log_axis():
    """A bar would have a length, which means nothing where the axis begins anywhere."""
    axes = figure("t", TABLE).axes[0]
    assert axes.get_xscale() == "log"
    assert not axes.patches
    means = [float(dot.get_xdata()[0]) for dot in dots(axes)]
    assert sorted(means) == pytest.approx(sorted(TABLE["norm_mean"]), rel=1e-12)
    assert all(dot.get_marker() != "None" for dot in dots(axes))


def test_whiskers_are_quantiles_and_positive():
    axes = figure("t", TABLE).axes[0]
    whiskers = {tuple(line.get_xdata()) for line in axes.get_lines() if len(line.get_xdata()) == 2}
    for low, high in zip(TABLE["norm_q05"], TABLE["norm_q95"], strict=True):
        assert (low, high) in whiskers
    assert axes.get_xlim()[0] > 0


def test_values_sizes_and_ratios_are_printed():
    texts = [text.get_text() for text in figure("t", TABLE).axes[0].texts]
    assert "16.53  (56.8 x)" in texts
    assert "0.2911" in texts
    assert "decoder input (d = 128)" in texts
    assert "vision encoder (d = 192)" in texts


def test_a_bare_encoder_has_no_ratio_and_no_line():
    table = TABLE[TABLE["stage"] == "vision_encoder"].assign(ratio_to_prompt=np.nan)
    axes = figure("t", table).axes[0]
    assert [t.get_text() for t in axes.texts] == ["vision encoder (d = 192)", "28.21", "41.90"]
    assert "dotted" not in axes.get_xlabel()


def test_rows_without_a_norm_get_no_dot():
    table = TABLE.copy()
    table.loc[table["group"] == "special", "norm_mean"] = np.nan
    table.loc[table["group"] == "visual", ["norm_q05", "norm_q95"]] = np.nan
    axes = figure("t", table).axes[0]
    assert len(dots(axes)) == len(table) - 2
    assert np.isfinite(axes.get_xlim()).all()


def test_intervals_of_the_means_are_thick():
    table = TABLE.assign(
        norm_mean_ci_low=TABLE["norm_mean"] * 0.9, norm_mean_ci_high=TABLE["norm_mean"] * 1.1
    )
    table.loc[table["group"].str.endswith("rows"), ["norm_mean_ci_low", "norm_mean_ci_high"]] = (
        np.nan
    )
    axes = figure("t", table).axes[0]
    thick = {tuple(line.get_xdata()) for line in axes.get_lines() if line.get_linewidth() > 3}
    held = table.dropna(subset="norm_mean_ci_low")
    assert thick == set(zip(held["norm_mean_ci_low"], held["norm_mean_ci_high"], strict=True))
    assert "95 % interval" in axes.get_xlabel()
    assert "95 % interval" not in figure("t", TABLE).axes[0].get_xlabel()
