"""What a terminal, the page and the figure show of ``interface``."""

from pathlib import Path

import numpy as np
import pytest
from support import made_tables
from support.made_runs import run_folder
from support.printed import printed
from support.read_page import Reader, drawn, page_of_folders

from normprobe.measurements.interface.figures import draw_interface
from normprobe.measurements.interface.shown import print_interface

INTERFACE = made_tables.interface()


def test_sizes_and_ratios_are_shown():
    lines = printed(print_interface, INTERFACE).splitlines()
    assert lines[1].split()[:2] == ["stage", "d"]
    at = lines.index(next(line for line in lines if line.startswith("decoder input")))
    assert lines[at].split()[-1] == "128"
    assert lines[at + 1].split() == [
        "visual", "3584", "16.53", "2.200", "16.53", "56.78", "75.03",
    ]  # fmt: skip


def test_every_mean_is_a_dot_with_its_intervals(tmp_path: Path) -> None:
    table = made_tables.interface()
    table["norm_mean_ci_low"], table["norm_mean_ci_high"] = table["norm_mean"] * 0.9, np.nan
    table.loc[0, "norm_mean"] = 0.0  # has no place on a logarithmic axis
    text = page_of_folders(run_folder(tmp_path / "run", "interface", interface=table))
    (picture,) = drawn(text, "dots")
    assert len(picture["rows"]) == len(table) - 1
    dots = {(row["stage"], row["name"]): row for row in picture["rows"]}
    dot = dots["decoder input (d = 128)", "visual"]
    expected = table.query("stage == 'decoder_input' and group == 'visual'").iloc[0]
    for end, column in (
        ("value", "norm_mean"),
        ("low", "norm_mean_ci_low"),
        ("least", "norm_q05"),
        ("most", "norm_q95"),
    ):
        assert dot[end] == pytest.approx(expected[column], rel=1e-5)
    assert dot["high"] is None
    assert dot["ratio"] == "57 x"
    assert picture["reference"]["value"] == pytest.approx(0.2911)
    assert "57 x louder" in Reader(text).text


INTERFACE = made_tables.interface()


def dots(axes):
    """The lines that are a single point."""
    return [line for line in axes.get_lines() if len(line.get_xdata()) == 1]


def test_dots_lie_at_the_means_on_a_log_axis():
    """A bar would have a length, which means nothing where the axis begins anywhere."""
    axes = draw_interface("t", INTERFACE).axes[0]
    assert axes.get_xscale() == "log"
    assert not axes.patches
    means = [float(dot.get_xdata()[0]) for dot in dots(axes)]
    assert sorted(means) == pytest.approx(sorted(INTERFACE["norm_mean"]), rel=1e-12)
    assert all(dot.get_marker() != "None" for dot in dots(axes))


def test_whiskers_are_quantiles_and_positive():
    axes = draw_interface("t", INTERFACE).axes[0]
    whiskers = {tuple(line.get_xdata()) for line in axes.get_lines() if len(line.get_xdata()) == 2}
    for low, high in zip(INTERFACE["norm_q05"], INTERFACE["norm_q95"], strict=True):
        assert (low, high) in whiskers
    assert axes.get_xlim()[0] > 0


def test_values_sizes_and_ratios_are_printed():
    texts = [text.get_text() for text in draw_interface("t", INTERFACE).axes[0].texts]
    assert "16.53  (56.8 x)" in texts
    assert "0.2911" in texts
    assert "decoder input (d = 128)" in texts
    assert "vision encoder (d = 192)" in texts


def test_a_bare_encoder_has_no_ratio_and_no_line():
    table = INTERFACE[INTERFACE["stage"] == "vision_encoder"].assign(ratio_to_prompt=np.nan)
    axes = draw_interface("t", table).axes[0]
    assert [t.get_text() for t in axes.texts] == ["vision encoder (d = 192)", "28.21", "41.90"]
    assert "dotted" not in axes.get_xlabel()


def test_rows_without_a_norm_get_no_dot():
    table = INTERFACE.copy()
    table.loc[table["group"] == "special", "norm_mean"] = np.nan
    table.loc[table["group"] == "visual", ["norm_q05", "norm_q95"]] = np.nan
    axes = draw_interface("t", table).axes[0]
    assert len(dots(axes)) == len(table) - 2
    assert np.isfinite(axes.get_xlim()).all()


def test_intervals_of_the_means_are_thick():
    table = INTERFACE.assign(
        norm_mean_ci_low=INTERFACE["norm_mean"] * 0.9,
        norm_mean_ci_high=INTERFACE["norm_mean"] * 1.1,
    )
    table.loc[table["group"].str.endswith("rows"), ["norm_mean_ci_low", "norm_mean_ci_high"]] = (
        np.nan
    )
    axes = draw_interface("t", table).axes[0]
    thick = {tuple(line.get_xdata()) for line in axes.get_lines() if line.get_linewidth() > 3}
    held = table.dropna(subset="norm_mean_ci_low")
    assert thick == set(zip(held["norm_mean_ci_low"], held["norm_mean_ci_high"], strict=True))
    assert "95 % interval" in axes.get_xlabel()
    assert "95 % interval" not in draw_interface("t", INTERFACE).axes[0].get_xlabel()
