"""Joining and ranking runs, by tables made by hand."""

import pandas as pd

from normprobe.measurements.compare.table import joined, ranking

LOUD = pd.DataFrame({"group": ["visual", "text"], "norm_mean": [80.0, 1.0]})
EVEN = pd.DataFrame({"group": ["visual", "text"], "norm_mean": [2.0, 1.0]})
TEXT_ONLY = LOUD.iloc[1:]


def disparity(table: pd.DataFrame) -> dict[str, float]:
    norms = table.set_index("group")["norm_mean"]
    return {
        "disparity_input": norms.get("visual", float("nan")) / norms["text"],
        "text_norm": norms["text"],
    }


def test_runs_are_joined_in_order_with_their_label_first() -> None:
    table = joined([LOUD, EVEN], ["b", "a"])
    assert table.columns[0] == "run"
    assert table["run"].tolist() == ["b"] * len(LOUD) + ["a"] * len(EVEN)
    pd.testing.assert_frame_equal(table[table["run"] == "b"].drop(columns="run"), LOUD)


def test_the_first_measure_ranks_and_runs_without_it_come_last() -> None:
    table = ranking(disparity, [EVEN, TEXT_ONLY, LOUD], ["even", "text", "loud"])
    assert list(table) == ["rank", "run", "disparity_input", "text_norm"]
    assert table["run"].tolist() == ["loud", "even", "text"]
    assert table["rank"].tolist()[:2] == [1, 2]
    assert pd.isna(table["rank"].iloc[2])
    assert table["disparity_input"].tolist()[:2] == [80.0, 2.0]


def test_equal_runs_share_a_rank_in_the_order_given() -> None:
    table = ranking(disparity, [EVEN, LOUD, LOUD], ["even", "one", "other"])
    assert table["run"].tolist() == ["one", "other", "even"]
    assert table["rank"].tolist() == [1, 1, 3]


def test_inertia_has_a_rank_of_its_own() -> None:
    def measures(table: pd.DataFrame) -> dict[str, float]:
        found = disparity(table)
        return found | {"inertia_gap": -found["disparity_input"]}

    table = ranking(measures, [LOUD, TEXT_ONLY, EVEN], ["loud", "text", "even"])
    assert table.columns[:3].tolist() == ["rank", "inertia_rank", "run"]
    assert table["inertia_rank"].tolist()[:2] == [2, 1]
    assert pd.isna(table["inertia_rank"].iloc[2])
