"""Faults that nobody chose are changes that can be planted, and none of them is text or a type."""

import ast
import random
import sys

import pytest
from support.documents import ROOT, loaded

sys.path.insert(0, str(ROOT / ".ci"))  # where its neighbour lies
PROGRAM = loaded(ROOT / ".ci/random_faults.py")
PACKAGE = ROOT / "normprobe"


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("a = b < c", {"b <= c"}),
        ("a = b and not c", {"b or not c", "c"}),
        ("a = b + 1", {"b - 1", "2"}),
        ("a = b if c else d", {"d if c else b"}),
        ("f(b, key=c)", {"pass", "f(b)"}),
        ("x = zip(b, c, strict=True)", set()),
        ("a += b", {"pass"}),
        ("for a in b:\n    continue", {"break"}),
        ("raise E", {"pass"}),
        ("def f(a: int = 1) -> X[2]:\n    return a", {"2", "return None"}),
        ("@d(1)\ndef f():\n    'text of 1'\n    x = f'{1}'", set()),
        ("if TYPE_CHECKING:\n    f(1)", set()),
    ],
)
def test_what_is_changed_in_a_line(code: str, changed: set[str]) -> None:
    assert {ast.unparse(place.other) for place in PROGRAM.places_of("a.py", code)} == changed


def test_the_numbers_of_a_figure_are_left_alone() -> None:
    assert not [*PROGRAM.places_of("layers/figures.py", "HEIGHT = 2.5")]
    assert [*PROGRAM.places_of("layers/table.py", "HEIGHT = 2.5")]


def test_a_drawn_fault_changes_its_file_and_meets_the_tests_beside_it_first() -> None:
    file = "statistics/resampling.py"
    places = [*PROGRAM.places_of(file, (PACKAGE / file).read_text(encoding="utf-8"))]
    for place in random.Random(0).sample(places, 40):
        fault = PROGRAM.fault_of(place)
        faulty = PROGRAM.faults.planted(fault, fault["from"])
        assert ast.dump(ast.parse(faulty)) != ast.dump(ast.parse(fault["from"]))
        assert PROGRAM.near(fault) == ["tests/statistics/test_resampling.py"]
    assert PROGRAM.near({"file": "statistics/none.py"}) == ["tests/statistics"]
    assert not PROGRAM.near({"file": "none.py"})
