"""What the figure of causes draws is what the table holds."""

import numpy as np
import pandas as pd
import pytest
from normprobe.measurements.layers.figures.accounted import figure

from experiments.theory import WORLDS, simulated
from normprobe.measurements.layers.accounted import PARTS, accounted_table
from normprobe.measurements.layers.table import layer_intervals, layers_table


@pytest.fixture(scope="module", params=["nothing", "larger visual updates"])
def table(request: pytest.FixtureRequest) -> pd.DataFrame:
    rows = simulated(WORLDS[request.param][0], 0)
    return accounted_table(rows, layer_intervals(layers_table(rows), rows))


def test_the_bars_of_a_layer_add_up_to_the_measured_ratio(table: pd.DataFrame) -> None:
    parts, _ = figure("made", table).axes
    rows = table[table["scope"] == "layer"].reset_index(drop=True)
    bars = [bar for group in parts.containers if hasattr(group, "patches") for bar in group.patches]
    for place, row in rows.iterrows():
        drawn = bars[place :: len(rows)]
        heights = [bar.get_height() for bar in drawn]
        assert heights == pytest.approx([row[f"log_{part}"] for part in PARTS])
        assert sum(heights) == pytest.approx(np.log(row["angle_ratio"]))
        up = [(bar.get_y(), bar.get_height()) for bar in drawn if bar.get_height() > 0]
        ends = [0.0, *(start + height for start, height in up)]
        assert [start for start, _ in up] == pytest.approx(ends[:-1])  # each on the one below


def test_the_axis_names_ratios(table: pd.DataFrame) -> None:
    parts, _ = figure("made", table).axes
    for tick, label in zip(parts.get_yticks(), parts.get_yticklabels(), strict=True):
        assert float(label.get_text().removesuffix(" x")) == pytest.approx(np.exp(tick))
    assert any(tick == 0 for tick in parts.get_yticks())


@pytest.mark.parametrize("span", [0.1, 0.3, 1.0, 3.0, 9.0])
def test_the_axis_names_some_ratios_whatever_they_span(table: pd.DataFrame, span: float) -> None:
    logs = [f"log_{part}" for part in PARTS]
    layers = table["scope"] == "layer"
    scaled = table.assign(**dict.fromkeys(logs, 0.0), angle_ratio_ci_low=np.nan)
    scaled = scaled.assign(log_norms=np.where(layers, span, 0.0), angle_ratio_ci_high=np.nan)
    scaled.loc[scaled.index[0], "log_norms"] = -span
    parts, _ = figure("made", scaled.assign(angle_ratio=np.exp(scaled["log_norms"]))).axes
    assert 3 <= len(parts.get_yticks()) <= 10
    assert 0 in parts.get_yticks()


def test_one_layer_is_drawn_too(table: pd.DataFrame) -> None:
    parts, angles = figure("made", table.iloc[:1]).axes
    assert len(angles.get_lines()) == 3
    assert parts.get_xlim()[0] < 1 < parts.get_xlim()[1]
