"""What every room shows: each line fits a terminal, and what it ranks by is measured."""

import io
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from support import made_cause, made_tables
from support.made_runs import run_folder
from support.printed import assert_fits, extreme

from normprobe.measurements import measurement
from normprobe.measurements.attention.shown import print_attention, print_images
from normprobe.measurements.embeddings.shown import print_embeddings, print_shift
from normprobe.measurements.interface.shown import print_interface
from normprobe.runs.run_folder import RunFolder

BOTH = ("text", "visual")
#: Of each printed table a usual one, and one with numbers as wide as they get.
PRINTED: dict[str, tuple[Callable[..., None], list[pd.DataFrame]]] = {
    "interface": (print_interface, [made_tables.interface()]),
    "embeddings": (print_embeddings, [made_tables.embeddings(*BOTH), made_tables.tokens(*BOTH)]),
    "shift": (print_shift, [made_tables.shift()]),
    "shift without distances": (print_shift, [made_tables.shift(distances=False)]),
    "attention": (print_attention, [made_tables.attention(80)]),
    "images": (print_images, [made_tables.attention().assign(image=1)]),
}


@pytest.mark.parametrize("wide", [False, True], ids=["usual", "extreme"])
@pytest.mark.parametrize("name", PRINTED)
def test_every_line_fits_and_nothing_is_cut_or_wrapped(name: str, wide: bool) -> None:
    show, tables = PRINTED[name]
    assert_fits(show, *(map(extreme, tables) if wide else tables))


@pytest.mark.parametrize(
    "name", ["interface", "attention", "embeddings", "grounding", "cause", "layers"]
)
def test_every_number_that_a_ranking_shows_is_measured(name: str) -> None:
    compared = measurement(name).module("compared")
    table = getattr(made_cause if name == "cause" else made_tables, name)()
    assert set(compared.COLUMNS.values()) <= compared.measures(table).keys()


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
    offered.show(run, Console(file=text, width=300))
    assert offered.verdict(run) == offered.headline(run) != ""
    assert " ".join(offered.verdict(run).split()) in " ".join(text.getvalue().split())
    assert "<p" in str(offered.section(run)[0])
