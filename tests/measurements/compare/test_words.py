"""What a ranking says, at the borders: ties, trainings, NaN, and disparities below 1."""

import math

import pytest

from normprobe.measurements.compare.table import ranking
from normprobe.measurements.compare.words import ranking_verdict

Number = float | tuple[float, float, float]
DISPARITY = "norm disparity at the decoder input"
OVER_IMAGES = "In brackets: 95 % intervals over images."


def number(name: str, value: Number) -> dict[str, float]:
    ends = value if isinstance(value, tuple) else (value, math.nan, math.nan)
    return dict(zip((name, f"{name}_ci_low", f"{name}_ci_high"), ends, strict=True))


def verdict(steps: list[int] | None = None, **runs: Number | tuple[Number, Number]) -> str:
    measures = [number("disparity_input", ratio) for ratio in runs.values()]
    return ranking_verdict(ranking(measures, list(runs), steps))


def with_gaps(**gaps: Number) -> str:
    measures = [
        number("disparity_input", 2.0 + place) | number("inertia_gap", gap)
        for place, gap in enumerate(gaps.values())
    ]
    return ranking_verdict(ranking(measures, list(gaps)))


def test_the_largest_and_the_smallest_with_their_intervals() -> None:
    assert verdict(after=(0.87, 0.8, 1.1), before=(82, 68, 102)) == (
        f"The {DISPARITY} is largest in before (82 x [68, 102] louder) and smallest in after "
        f"(about as loud, 0.87 x [0.80, 1.10]). {OVER_IMAGES}"
    )


def test_far_below_1_is_a_large_disparity() -> None:
    assert verdict(little=1.41, quiet=0.066) == (
        f"The {DISPARITY} is largest in quiet (15 x quieter) and smallest in little (1.41 x "
        "louder). No intervals."
    )


def test_runs_whose_intervals_overlap_are_named_together() -> None:
    assert verdict(a=(10, 8, 12), b=(11, 9, 13), c=(2, 1.5, 3)) == (
        f"The {DISPARITY} is largest in b (11.0 x [9.0, 13.0] louder) and a (10.0 x [8.0, "
        f"12.0] louder) and smallest in c (2.00 x [1.50, 3.00] louder). {OVER_IMAGES}"
    )


@pytest.mark.parametrize("other", [(0.5, 0.3, 0.9), (3.0, 1.1, 5.0), (2.0, 1.5, 2.5)])
def test_runs_that_nothing_tells_apart(other: Number) -> None:
    sentence = verdict(a=(2.0, 1.5, 2.5), b=other)
    assert sentence.startswith(f"The {DISPARITY} does not tell the runs apart: ")


def test_equal_numbers_are_a_tie() -> None:
    assert verdict(a=2.0, b=0.5) == (
        f"The {DISPARITY} does not tell the runs apart: a (2.0 x louder) and b (2.0 x quieter). "
        "No intervals."
    )
    assert "largest in a (3.0 x louder) and b (3.0 x louder) and smallest in c" in verdict(
        a=3.0, b=3.0, c=2.0
    )


def test_many_ties_are_counted() -> None:
    sentence = verdict(**{f"run{n}": (2.0 + n / 100, 1.5, 2.5) for n in range(7)})
    assert "run6 (2.06 x [1.50, 2.50] louder), run5 " in sentence
    assert sentence.endswith(f"and 3 more. {OVER_IMAGES}")


def test_a_training_goes_from_its_first_to_its_last_step() -> None:
    sentence = verdict([0, 50, 100], s0=(82, 68, 102), s1=(90, 85, 95), s2=(4, 3, 5))
    assert sentence.startswith(
        "At the decoder input visual tokens go from 82 x [68, 102] louder at step 0 to 4.0 x "
        f"[3.0, 5.0] louder at step 100. The {DISPARITY} is largest in s1 (90 x [85, 95] louder) "
        "and s0 "
    )
    assert "at step 100, not told apart. The" in verdict([0, 100], s0=(4, 3, 5), s1=(5, 4, 6))


def test_runs_without_a_disparity_are_left_out() -> None:
    assert verdict(a=2.0, b=math.nan) == ""
    assert "nothing" not in verdict(a=2.0, b=4.0, nothing=math.nan)
    assert ranking_verdict(ranking([{"loudest_ratio": 4.0}] * 2, ["a", "b"])) == ""


def test_inertia_is_told_where_it_is_told_apart() -> None:
    sentence = with_gaps(a=(0.36, 0.3, 0.4), b=(0.02, -0.01, 0.05))
    assert (
        "Text tokens turn ahead of visual ones by most in a (0.36 [0.30, 0.40] radians" in sentence
    )
    assert "Visual tokens turn ahead" not in sentence
    both = with_gaps(a=(0.36, 0.3, 0.4), b=(0.32, 0.29, 0.35), c=-0.1)
    assert "by most in a (0.36 [0.30, 0.40] radians a layer) and b (0.32 [0.29, 0.35]" in both
    assert "Visual tokens turn ahead of text in c (-0.10 radians a layer)." in both
    assert "In no run is the angle of text and of visual tokens told apart." in with_gaps(
        a=(0.02, -0.01, 0.05), b=(-0.02, -0.05, 0.01)
    )
    assert "turn" not in with_gaps(a=math.nan, b=math.nan)
