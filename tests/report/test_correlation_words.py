"""What is said of the rank correlation, and what is not."""

import numpy as np
import pytest

from normprobe.report.sentences import correlation_sentence, correlation_table


def sentence(disparity: list[float], inertia: list[float]) -> str:
    return correlation_sentence(correlation_table(disparity, inertia))


def test_a_direction_is_told_where_the_interval_has_one() -> None:
    rising = [float(number) for number in range(8)]
    assert sentence(rising, rising) == (
        "Inertia goes with disparity: rank correlation 1.00 [0.81, 1.00] over 8 models (95 % "
        "interval over models)."
    )
    assert sentence(rising, rising[::-1]).startswith("Inertia goes against disparity: rank ")


def test_where_the_interval_holds_0_nothing_is_claimed() -> None:
    random = np.random.default_rng(0)
    told = sentence(random.normal(size=25).tolist(), random.normal(size=25).tolist())
    assert told.startswith("Whether inertia goes with disparity is inconclusive: rank ")
    assert "narrow" not in told


@pytest.mark.parametrize(("models", "have"), [(0, "none have"), (1, "1 has"), (4, "4 have")])
def test_too_few_models_have_no_correlation(models: int, have: str) -> None:
    numbers = [float(number) for number in range(models)]
    assert sentence(numbers, numbers) == (
        f"Whether inertia goes with disparity takes 5 models with both numbers; {have} them."
    )


def test_numbers_that_are_all_the_same_have_no_ranks() -> None:
    assert "no rank correlation" in sentence([1.0] * 6, [1.0, 2, 3, 4, 5, 6])
