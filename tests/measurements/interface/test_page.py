"""The section of a run of ``interface``: a dot for every stage and group."""

from pathlib import Path

import numpy as np
import pytest
from support import made_tables
from support.made_runs import run_folder
from support.read_page import Reader, drawn, page_of_folders


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
