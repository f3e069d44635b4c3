"""Runs show what they did when somebody last looked at it, in all forms, and it fits a terminal."""

from dataclasses import replace

import pytest
from support.golden import CASES, GOLDEN, Case, sentences, shown
from support.printed import assert_fits, extreme

PRINTED = {name: case for name, case in CASES.items() if "terminal" in case.forms}


@pytest.mark.parametrize("name", CASES)
def test_a_run_is_shown_as_it_was(name: str) -> None:
    assert shown(CASES[name]) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_what_is_said_is_what_was_said() -> None:
    assert sentences() == (GOLDEN / "sentences.txt").read_text(encoding="utf-8")


def test_every_file_has_its_case() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == {*CASES, "sentences"}


@pytest.mark.parametrize("case", PRINTED.values(), ids=PRINTED)
def test_every_line_fits_and_nothing_is_cut_of_the_widest_numbers(case: Case) -> None:
    widest = {name: extreme(table) for name, table in case.tables.items()}
    assert_fits(replace(case, tables=widest).run.show)
