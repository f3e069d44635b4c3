"""The faults that `make faults` plants stay plantable while the code moves."""

import ast

import pytest
from support.documents import ROOT, loaded

PROGRAM = loaded(ROOT / ".ci/faults.py")
FAULTS = PROGRAM.faults()


@pytest.mark.parametrize("fault", FAULTS, ids=[fault["name"] for fault in FAULTS])
def test_a_fault_can_be_planted(fault: dict[str, str]) -> None:
    sound = (ROOT / "normprobe" / fault["file"]).read_text(encoding="utf-8")
    faulty = PROGRAM.planted(fault, sound)
    assert ast.dump(ast.parse(faulty)) != ast.dump(ast.parse(sound))
    for test in fault["killed_by"]:
        file, _, name = test.partition("[")[0].partition("::")
        assert f"def {name}" in (ROOT / file).read_text(encoding="utf-8")


def test_each_fault_has_a_name_of_its_own() -> None:
    assert len({fault["name"] for fault in FAULTS}) == len(FAULTS)
