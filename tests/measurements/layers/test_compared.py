"""What ranks runs of ``layers``, by tables made by hand."""

import numpy as np
import pandas as pd
import pytest

from normprobe.measurements.compare.table import joined, ranking
from normprobe.measurements.layers.compared import COLUMNS, figures, measures


def layers(visual: list[float], text: list[float], turns: tuple[float, float]) -> pd.DataFrame:
    rows = []
    for group, norms, turn in (("visual", visual, turns[0]), ("text", text, turns[1])):
        for layer, norm in enumerate(norms):
            angle = turn * layer if layer else np.nan
            rows.append({"layer": layer, "group": group, "norm_mean": norm, "angle_mean": angle})
    rows.append({"layer": 0, "group": "special", "norm_mean": 1e6, "angle_mean": 9.0})
    return pd.DataFrame(rows)


LOUD = layers([80.0, 81.0, 82.0, 83.0], [1.0, 2.0, 4.0, 8.0], (0.1, 0.4))
EVEN = layers([2.0, 2.0, 2.0], [1.0, 1.0, 2.0], (0.1, 1.0))
TEXT_ONLY = LOUD[LOUD["group"] == "text"]


def test_disparity_at_the_input_ranks_and_inertia_stands_beside_it() -> None:
    table = ranking(measures, [EVEN, TEXT_ONLY, LOUD], ["even", "text", "loud"])
    assert table["run"].tolist() == ["loud", "even", "text"]
    assert table["rank"].tolist()[:2] == [1, 2]
    assert pd.isna(table["rank"].iloc[2])
    loud, even, lonely = (row for _, row in table.iterrows())
    assert loud["disparity_input"] == 80.0
    assert loud["disparity_middle"] == 82.0 / 4.0  # after layer 2 of 3
    assert loud["disparity_last"] == 83.0 / 8.0
    assert loud["inertia_gap"] == pytest.approx(np.mean([0.3, 0.6, 0.9]))
    assert even["disparity_middle"] == 2.0  # after layer 1 of 2
    assert even["inertia_gap"] == pytest.approx(np.mean([0.9, 1.8]))
    assert (loud["inertia_rank"], even["inertia_rank"]) == (2, 1)
    assert np.isnan(lonely["inertia_gap"])


def test_every_column_that_is_shown_is_measured() -> None:
    assert set(COLUMNS.values()) <= measures(LOUD).keys()


def test_checkpoints_of_one_training_are_drawn_by_step() -> None:
    table = joined([LOUD, EVEN], ["a", "b"])
    assert figures(table) == ("small_multiples", "overlay")
    assert figures(table.assign(step=0)) == ("training", "small_multiples")
