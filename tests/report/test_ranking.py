"""Joining and ranking runs, by tables made by hand."""

import re
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from normprobe.measurements.compare.measure import joined
from normprobe.report.ranked import ranking_dots, with_brackets
from normprobe.report.ranking import ranking, ranking_sentences, runs_side_by_side
from normprobe.report.ratio_words import Estimate
from normprobe.report.verdict import verdict_of
from normprobe.tidy import select

LOUD = pd.DataFrame({"group": ["visual", "text"], "norm_mean": [80.0, 1.0]})
EVEN = pd.DataFrame({"group": ["visual", "text"], "norm_mean": [2.0, 1.0]})
TEXT_ONLY = LOUD.iloc[1:]
RANKS = ["mean", "low", "high"]


def disparity(table: pd.DataFrame) -> dict[str, Estimate]:
    norms = table.set_index("group")["norm_mean"]
    return {
        "disparity_input": Estimate(norms.get("visual", float("nan")) / norms["text"]),
        "text_norm": Estimate(norms["text"]),
    }


def of_each(table: pd.DataFrame, quantity: str = "rank") -> pd.DataFrame:
    """The rows of a quantity, which every run has, in their order."""
    rows = select(table, quantity).reset_index(drop=True)
    assert rows["run"].tolist() == list(dict.fromkeys(table["run"]))
    return rows


def test_runs_are_joined_in_order_with_their_label_first() -> None:
    table = joined([LOUD, EVEN], ["b", "a"])
    assert table.columns[0] == "run"
    assert table["run"].tolist() == ["b"] * len(LOUD) + ["a"] * len(EVEN)
    pd.testing.assert_frame_equal(table[table["run"] == "b"].drop(columns="run"), LOUD)


@pytest.mark.filterwarnings("error::pandas.errors.PerformanceWarning")
def test_a_table_that_grew_column_by_column_is_joined_at_once() -> None:
    grown = pd.DataFrame(index=range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place in range(120):
            grown[f"c{place}"] = float(place)
    table = joined([grown, grown.iloc[:1]], ["a", "b"], [4, 8])
    assert table["run"].tolist() == ["a", "a", "b"]
    assert table["step"].tolist() == [4, 4, 8]
    assert list(table)[:2] == ["run", "step"]
    assert table["c119"].tolist() == [119.0] * 3


def test_the_first_measure_ranks_and_runs_without_it_come_last() -> None:
    table = ranking([disparity(t) for t in (EVEN, TEXT_ONLY, LOUD)], ["even", "text", "loud"])
    assert list(table) == ["run", "quantity", "mean", "low", "high"]
    assert table["quantity"].tolist() == ["rank", "disparity_input", "text_norm"] * 3
    assert of_each(table)["run"].tolist() == ["loud", "even", "text"]
    assert of_each(table)["mean"].tolist()[:2] == [1, 2]
    assert pd.isna(of_each(table)["mean"].iloc[2])
    assert of_each(table, "disparity_input")["mean"].tolist()[:2] == [80.0, 2.0]


def test_a_disparity_is_as_large_the_other_way_round() -> None:
    """1.41 x is a smaller disparity than 0.066 x, which is 15 x."""
    measures = [{"disparity_input": Estimate(ratio)} for ratio in (1.41, 0.066, 1.0, 2.0, 0.5)]
    table = of_each(ranking(measures, ["a", "b", "c", "d", "e"]))
    assert table["run"].tolist() == ["b", "d", "e", "a", "c"]
    assert table["mean"].tolist() == [1, 2, 2, 4, 5]


def test_equal_runs_share_a_rank_in_the_order_given() -> None:
    table = of_each(ranking([disparity(t) for t in (EVEN, LOUD, LOUD)], ["even", "one", "other"]))
    assert table["run"].tolist() == ["one", "other", "even"]
    assert table["mean"].tolist() == [1, 1, 3]


def estimate(value: float, low: float, high: float) -> dict[str, Estimate]:
    return {"disparity_input": Estimate(value, low, high)}


def ranks(*measures: dict[str, Estimate]) -> list[list[int]]:
    table = ranking(measures, [str(place) for place in range(len(measures))])
    return of_each(table)[RANKS].to_numpy().tolist()


def test_a_rank_has_the_interval_that_the_intervals_of_the_numbers_leave_open() -> None:
    four = [estimate(11, 10, 12), estimate(10, 9, 11), estimate(8, 5, 9.5), estimate(6, 5, 7)]
    assert ranks(*four) == [[1, 1, 2], [2, 1, 3], [3, 2, 4], [4, 3, 4]]
    # Of a ratio whose interval holds 1, the smallest size is 1.
    assert ranks(estimate(0.7, 0.3, 1.5), estimate(1.2, 1.1, 1.3)) == [[1, 1, 2], [2, 1, 2]]
    # Without an interval the number stands for it.
    none = np.nan
    assert ranks(estimate(13, none, none), estimate(11, 10, 12)) == [[1, 1, 1], [2, 2, 2]]
    assert ranks(estimate(11.5, none, none), estimate(11, 10, 12)) == [[1, 1, 2], [2, 1, 2]]


def test_among_many_runs_two_have_to_be_farther_apart() -> None:
    def run(log: float) -> dict[str, Estimate]:
        return estimate(*np.exp([log, log - 0.1, log + 0.1]))

    two = run(1.21), run(1.0)
    assert ranks(*two) == [[1, 1, 1], [2, 2, 2]]
    # Bonferroni over 45 pairs widens each interval by 3.26 / (1.96 sqrt(2)) = 1.18.
    assert ranks(*map(run, range(2, 10)), *two)[-2:] == [[9, 9, 10], [10, 9, 10]]


def test_equal_numbers_leave_their_ranks_open() -> None:
    assert ranks(*[estimate(2, np.nan, np.nan)] * 3) == [[1, 1, 3]] * 3


def test_a_run_without_the_number_is_counted_in_no_rank() -> None:
    measures = [disparity(t) for t in (EVEN, TEXT_ONLY, LOUD)]
    table = of_each(ranking(measures, ["even", "text", "loud"]))
    assert table[RANKS].iloc[:2].to_numpy().tolist() == [[1, 1, 1], [2, 2, 2]]
    assert table[RANKS].iloc[2].isna().all()


def test_checkpoints_of_a_training_stay_in_order() -> None:
    measures = [{"disparity_input": Estimate(ratio)} for ratio in (3.0, np.nan, 9.0)]
    table = ranking(measures, ["s0", "s1", "s2"], [0, 100, 200])
    assert list(table)[:3] == ["run", "step", "quantity"]
    table = of_each(table)
    assert table["run"].tolist() == ["s0", "s1", "s2"]
    assert table["step"].tolist() == [0, 100, 200]
    assert table["mean"].tolist()[::2] == [2, 1]


def test_inertia_has_a_rank_of_its_own() -> None:
    gaps = [-80.0, np.nan, -2.0]
    measures = [
        {**disparity(table), "inertia_gap": Estimate(gap)}
        for table, gap in zip((LOUD, TEXT_ONLY, EVEN), gaps, strict=True)
    ]
    table = ranking(measures, ["loud", "text", "even"])
    assert table["quantity"].tolist()[:2] == ["rank", "inertia_rank"]
    of_inertia = of_each(table, "inertia_rank")
    assert of_inertia["mean"].tolist()[:2] == [2, 1]
    assert of_inertia[RANKS].iloc[2].isna().all()


@pytest.mark.parametrize("runs", [2, 12])
def test_of_many_runs_inertia_is_told_by_intervals_that_hold_for_all(runs: int) -> None:
    """One of twelve equal models has an interval beside zero by chance in 46 of 100 surveys."""
    gap, none = ({"inertia_gap": Estimate(*gap)} for gap in ((1.0, 0.3, 1.7), (0.2, -0.7, 1.1)))
    measures = [disparity(LOUD) | (none if number else gap) for number in range(runs)]
    told = said(ranking(measures, [f"m{number}" for number in range(runs)]))
    assert ("ahead of visual ones by most in m0" in told) == (runs == 2)
    assert ("inconclusive in every run" in told) == (runs != 2)


def said(table: pd.DataFrame, *others: Any, **more: Any) -> str:
    return str(verdict_of(*ranking_sentences(table, *others, **more)))


def made(**numbers: list[float]) -> pd.DataFrame:
    rows = pd.DataFrame(numbers).map(Estimate)
    return ranking(rows.to_dict("records"), [f"org-{place}" for place in range(len(rows))])


MIXED = made(
    disparity_input=[80.0, 0.05, 1.1, np.nan, np.nan, np.nan],
    attended_ratio=[np.nan, np.nan, np.nan, 90.0, np.nan, np.nan],
)


def test_the_models_of_a_verdict_add_up_and_other_kinds_say_so() -> None:
    told = said(MIXED, "models", failed=["org-5"])
    counted = re.findall(r"(\d) of 6 models", told)
    attended = "In org-3 text attends to visual states beside the sequence: 90 x larger."
    assert sum(map(int, counted)) + told.count(attended) == MIXED["run"].nunique() == 6
    assert "1 of 6 models failed (org-5)." in told
    assert "1 of 6 models without a ratio (org-4)." in told


def test_of_models_that_all_failed_that_is_said() -> None:
    table = made(disparity_input=[np.nan] * 2)
    told = said(table, "models", failed=["org-0", "org-1"])
    assert told == "2 of 2 models failed (org-0 and org-1)."


def test_a_ratio_of_another_kind_has_no_rank_among_the_others() -> None:
    mixed = of_each(MIXED)
    assert mixed["run"].tolist()[:3] == ["org-0", "org-1", "org-2"]
    assert mixed["mean"].tolist()[:3] == [1, 2, 3]
    assert mixed["mean"][3:].isna().all()
    alone = of_each(made(disparity_input=[np.nan] * 2, attended_ratio=[2.0, 5.0]))
    assert alone["run"].tolist() == ["org-1", "org-0"]
    assert alone["mean"].tolist() == [1, 2]


def test_dots_show_each_ratio_by_its_kind_with_the_ranks_left_open() -> None:
    measures = [estimate(11, 10, 12), estimate(10, 9, 11), {"attended_ratio": Estimate(3.0)}]
    table = ranking(measures, ["a", "b", "c"])
    dots = ranking_dots(table, "disparity_input", "at the input", {"a": "#123456"})
    assert dots is not None
    assert [(dot.name, dot.mark) for dot in dots.rows] == [("a", "1-2"), ("b", "1-2"), ("c", "")]
    assert dots.rows[0].interval == (10, 12)
    assert dots.rows[0].look.color == "#123456"
    first, second, third = (dot.stage for dot in dots.rows)
    assert first == second == "at the input"
    assert "attends" in third
    without = table[(table["run"] != "c") & (table["quantity"] != "disparity_input")]
    assert ranking_dots(without, "disparity_input", "") is None


def test_a_rank_and_an_interval_stand_in_one_cell() -> None:
    table = ranking([estimate(11, 10, 12), estimate(10, 9, 11)], ["a", "b"])
    read = with_brackets(runs_side_by_side(table))
    assert read.headers == [("rank",), ("run",), ("disparity input",)]
    assert read.rows == [
        ["1 (1-2)", "a", "11.0 [10.0, 12.0]"],
        ["2 (1-2)", "b", "10.0 [9.00, 11.0]"],
    ]
