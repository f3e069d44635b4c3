"""What a terminal, the page and the figure show of ``interface``: the same dots."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from support import made_tables
from support.flat import tidied
from support.made_runs import run_folder
from support.printed import printed
from support.read_page import Reader, drawn, page_of_folders

from normprobe.measurements.interface.figures import draw_interface
from normprobe.measurements.interface.shown import print_interface


def with_intervals() -> pd.DataFrame:
    """Rows of an embedding table have none; the first row has no place on a logarithmic axis."""
    table = made_tables.interface()
    of_samples = table["norm_mean"].where(~table["group"].str.endswith("rows"))
    table["norm_mean_ci_low"], table["norm_mean_ci_high"] = of_samples * 0.9, of_samples * 1.1
    table.loc[0, "norm_mean"] = 0.0
    return table


def test_sizes_and_ratios_are_printed() -> None:
    lines = printed(print_interface, tidied("interface", made_tables.interface())).splitlines()
    assert lines[1].split()[:2] == ["stage", "d"]
    at = lines.index(next(line for line in lines if line.startswith("decoder input")))
    assert lines[at].split()[-1] == "128"
    assert lines[at + 1].split() == [
        "visual", "3584", "16.53", "2.200", "16.53", "56.78", "75.03",
    ]  # fmt: skip


def test_every_mean_is_a_dot_of_the_page(tmp_path: Path) -> None:
    table = with_intervals()
    text = page_of_folders(
        run_folder(tmp_path / "run", "interface", interface=tidied("interface", table))
    )
    (picture,) = drawn(text, "dots")
    assert len(picture["rows"]) == len(table) - 1
    dots = {(row["stage"], row["name"]): row for row in picture["rows"]}
    dot = dots["decoder input (d = 128)", "visual"]
    expected = table.query("stage == 'decoder_input' and group == 'visual'").iloc[0]
    columns = ("norm_mean", "norm_mean_ci_low", "norm_mean_ci_high", "norm_q05", "norm_q95")
    ends = [dot[end] for end in ("value", "low", "high", "least", "most")]
    assert ends == pytest.approx(expected[[*columns]].tolist(), rel=1e-5)
    assert dot["ratio"] == "57 x"
    assert dots["text embedding table (d = 128)", "nonzero rows"]["low"] is None
    assert picture["reference"]["value"] == pytest.approx(0.2911)
    assert "57 x the norm" in Reader(text).text


def lines_of(axes: Axes, points: int) -> list[Line2D]:
    return [line for line in axes.get_lines() if len(line.get_xdata()) == points]


def spans(lines: list[Line2D]) -> set[tuple[float, ...]]:
    return {tuple(map(float, line.get_xdata())) for line in lines}


def test_every_mean_is_a_dot_on_paper_with_whiskers_and_interval() -> None:
    """A bar would have a length, which means nothing where the axis begins anywhere."""
    table = with_intervals()
    axes = draw_interface("t", tidied("interface", table)).axes[0]
    table = table.iloc[1:]
    assert axes.get_xscale() == "log"
    assert axes.get_xlim()[0] > 0
    assert not axes.patches
    dots = lines_of(axes, 1)
    assert sorted(float(dot.get_xdata()[0]) for dot in dots) == sorted(table["norm_mean"])
    assert all(dot.get_marker() != "None" for dot in dots)
    assert set(zip(table["norm_q05"], table["norm_q95"], strict=True)) <= spans(lines_of(axes, 2))
    thick = [line for line in lines_of(axes, 2) if line.get_linewidth() > 3]
    held = table.dropna(subset="norm_mean_ci_low")
    ends = zip(held["norm_mean_ci_low"], held["norm_mean_ci_high"], strict=True)
    assert spans(thick) == set(ends)
    assert "95 % interval" in axes.get_xlabel()
    texts = [text.get_text() for text in axes.texts]
    assert {"16.53  (56.8 x)", "0.2911", "decoder input (d = 128)"} <= set(texts)


def test_what_is_not_known_is_not_drawn() -> None:
    table = made_tables.interface()
    table.loc[table["group"] == "special", "norm_mean"] = np.nan
    table.loc[table["group"] == "visual", ["norm_q05", "norm_q95"]] = np.nan
    axes = draw_interface("t", tidied("interface", table)).axes[0]
    assert len(lines_of(axes, 1)) == len(table) - 2
    assert np.isfinite(axes.get_xlim()).all()
    assert "95 % interval" not in axes.get_xlabel()
    encoder = made_tables.interface().query("stage == 'vision_encoder'")
    encoder = encoder.assign(ratio_to_prompt=np.nan)
    axes = draw_interface("t", tidied("interface", encoder)).axes[0]
    assert [t.get_text() for t in axes.texts] == ["vision encoder (d = 192)", "28.21", "41.90"]
    assert "dotted" not in axes.get_xlabel()
