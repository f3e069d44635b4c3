"""What every room shows: each line fits a terminal, and what it ranks by is measured."""

import io
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from support import made_cause, made_tables
from support.flat import tidied
from support.made_runs import run_folder
from support.printed import assert_fits, extreme
from support.read_page import Reader

from normprobe.extensions.pictures.attention.shown import print_attention, print_images
from normprobe.measurements import compared_by, measurement
from normprobe.measurements.embeddings.shown import print_embeddings, print_shift
from normprobe.measurements.interface.shown import print_interface
from normprobe.run import Run
from normprobe.runs.run_folder import RunFolder

BOTH = ("text", "visual")
#: Of each printed table a usual one, flat, and one with numbers as wide as they get.
PRINTED: dict[str, tuple[Callable[..., None], dict[str, pd.DataFrame]]] = {
    "interface": (print_interface, {"interface": made_tables.interface()}),
    "embeddings": (
        print_embeddings,
        {"embeddings": made_tables.embeddings(*BOTH), "tokens": made_tables.tokens(*BOTH)},
    ),
    "shift": (print_shift, {"shift": made_tables.shift()}),
    "shift without distances": (print_shift, {"shift": made_tables.shift(distances=False)}),
    "attention": (print_attention, {"attention": made_tables.attention(80)}),
    "images": (
        lambda table, console: print_images(table.assign(image=1), console),
        {"attention": made_tables.attention()},
    ),
}


@pytest.mark.parametrize("wide", [False, True], ids=["usual", "extreme"])
@pytest.mark.parametrize("name", PRINTED)
def test_every_line_fits_and_nothing_is_cut_or_wrapped(name: str, wide: bool) -> None:
    show, tables = PRINTED[name]
    change = extreme if wide else pd.DataFrame.copy
    assert_fits(show, *(tidied(name, change(table)) for name, table in tables.items()))


@pytest.mark.parametrize(
    "name", ["interface", "attention", "embeddings", "grounding", "cause", "layers"]
)
def test_every_number_that_a_ranking_shows_is_measured(name: str) -> None:
    compared = compared_by(name)
    table = getattr(made_cause if name == "cause" else made_tables, name)()
    assert set(compared.COLUMNS.values()) <= compared.measures(tidied(name, table)).keys()


@pytest.mark.parametrize("name", ["interface", "attention", "embeddings", "grounding"])
def test_a_run_is_shown_with_its_sentence_and_its_section_begins_with_it(
    name: str, tmp_path: Path
) -> None:
    tables = {name: getattr(made_tables, name)()}
    if name == "embeddings":
        tables["tokens"] = made_tables.tokens()
    offered = measurement(name)
    run = RunFolder.open(run_folder(tmp_path / "run", name, **tables))
    text = io.StringIO()
    Run(run).show(Console(file=text, width=300))
    verdict = offered.verdict_of_run(run)
    assert verdict.headline != ""
    printed = " ".join(text.getvalue().split())
    section = Reader(str(offered.section(run)[0])).text
    for line in (verdict.headline, *(finding.words for finding in verdict.findings)):
        assert " ".join(line.split()) in printed
        assert line in section
