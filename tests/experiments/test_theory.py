"""In a world of the paper each test holds; where one assumption is broken, its test fails."""

from pathlib import Path

import pytest

from experiments.theory import DEPENDENT, WORLDS, rates

pytestmark = pytest.mark.slow  # no behaviour of the package

BALANCED = "Modality Norm Imbalance"


@pytest.mark.parametrize("broken", WORLDS)
def test_the_test_of_the_broken_assumption_fails_and_no_other(broken: str) -> None:
    world, failing = WORLDS[broken]
    found = rates(world, range(1000, 1008))
    for test, shares in found.iterrows():
        if test == failing:
            assert shares["fails"] >= 0.95, found
        elif test == BALANCED and broken == "equal norms":
            assert shares["does not apply"] == 1, found
        elif test not in DEPENDENT.get(failing, ()):
            assert shares["holds"] >= 0.95, found


def test_the_documentation_has_a_row_for_each_world() -> None:
    page = (Path(__file__).parents[2] / "docs/explanation/theory.md").read_text(encoding="utf-8")
    table = page.split("<!-- rates -->\n")[1].split("\n<!-- /rates -->")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]]
    assert rows == list(WORLDS)
