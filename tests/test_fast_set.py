"""The list of what the fast tests leave out names tests that there are, and leaves those out."""

from pathlib import Path

import conftest
import pytest
from support.documents import ROOT

LINES = conftest.SLOW_TESTS.read_text(encoding="utf-8").splitlines()


def test_every_line_names_a_test() -> None:
    for line in LINES:
        file, _, name = line.removeprefix("+ ").partition("[")[0].partition("::")
        assert f"def {name.rpartition('::')[2]}(" in (ROOT / file).read_text(encoding="utf-8"), line


def test_a_case_that_is_fast_stands_behind_its_function() -> None:
    function = ""
    for line in LINES:
        if line.startswith("+ "):
            assert line.removeprefix("+ ").partition("[")[0] == function
        else:
            function = line


def test_a_share_is_of_a_function_that_there_is() -> None:
    for line in conftest.FURTHER_CASES.read_text(encoding="utf-8").splitlines():
        share, test = line.split()
        file, _, name = test.partition("::")
        assert int(share) != 1, line
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), line


class Item:
    """What the hook asks of a test."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid, self.markers = nodeid, list[str]()

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.markers.append(mark.name)

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.markers else None


def test_functions_that_are_left_out_are_slow_but_for_these_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    chosen, shares = tmp_path / "slow.txt", tmp_path / "shares.txt"
    chosen.write_text("t.py::test_a\n+ t.py::test_a[2]\nt.py::test_b\nt.py::test_d\nt.py::test_e\n")
    shares.write_text("4 t.py::test_d\n4 t.py::test_c\n0 t.py::test_e\n")
    monkeypatch.setattr(conftest, "SLOW_TESTS", chosen)
    monkeypatch.setattr(conftest, "FURTHER_CASES", shares)
    monkeypatch.setattr(pytestconfig.pluginmanager, "hasplugin", lambda _: False)
    items = [Item(f"t.py::test_{name}") for name in ("a[1]", "a[2]", "b", "c[1]", "c[2]", "e")]
    many = [Item(f"t.py::test_d[{number}]") for number in range(64)]
    conftest.pytest_collection_modifyitems(pytestconfig, [*items, *many])
    assert [item.markers for item in items] == [["slow"], [], ["slow"], [], [], ["slow", "further"]]
    assert many[0].markers == ["slow"]
    assert all(item.markers[0] == "slow" for item in many)
    assert 8 <= sum(item.markers == ["slow"] for item in many) <= 32
