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


class Item:
    """What the hook asks of a test."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid, self.markers = nodeid, list[str]()

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.markers.append(mark.name)


def test_functions_that_are_left_out_are_slow_but_for_these_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    chosen = tmp_path / "slow.txt"
    chosen.write_text("t.py::test_a\n+ t.py::test_a[2]\nt.py::test_b\n")
    monkeypatch.setattr(conftest, "SLOW_TESTS", chosen)
    monkeypatch.setattr(pytestconfig.pluginmanager, "hasplugin", lambda _: False)
    items = [Item(f"t.py::test_{name}") for name in ("a[1]", "a[2]", "b", "c[1]")]
    conftest.pytest_collection_modifyitems(pytestconfig, items)
    assert [item.markers for item in items] == [["slow"], [], ["slow"], []]
