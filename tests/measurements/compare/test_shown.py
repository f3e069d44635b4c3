"""What a terminal and the page show of ``compare``."""

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support import made_tables
from support.made_runs import run_folder
from support.printed import assert_fits, printed
from support.read_page import Reader, charts, page_of_folders

from normprobe.measurements.compare.shown import print_ranking
from normprobe.measurements.compare.table import ranking

OVERLAP = "1 (1-3): first by its number; 95 % intervals leave ranks 1 to 3 open."
EQUAL = "1 (1-3): equal numbers share ranks 1 to 3."


def ranked(name: str, numbers: list[tuple[float, ...]]) -> pd.DataFrame:
    names = (name, f"{name}_ci_low", f"{name}_ci_high")
    measures: list[dict[str, Any]] = [dict(zip(names, n, strict=False)) for n in numbers]
    columns = {"disparity_middle": 1.0, "disparity_last": 1.0, "inertia_gap": 0.1}
    columns |= {"visual_ratio": 1.0, "text_norm": 1.0, "text_std": 1.0, "base_norm": 1.0}
    return ranking([measured | columns for measured in measures], list("abc")[: len(numbers)])


def shown(command: str, table: pd.DataFrame) -> str:
    assert_fits(partial(print_ranking, command), table)
    return printed(partial(print_ranking, command), table)


def test_an_open_rank_is_explained_by_what_leaves_it_open() -> None:
    intervals = shown("layers", ranked("disparity_input", [(5, 4, 6), (5.5, 4, 7), (2, 1.9, 2.1)]))
    assert OVERLAP in intervals
    assert "1 (1-2)" in intervals
    weights = shown("embeddings", ranked("loudest_ratio", [(5.0,), (5.0,)]))
    assert EQUAL in weights
    assert "interval" not in weights


def test_ranks_that_are_all_known_are_not_explained() -> None:
    text = shown("layers", ranked("disparity_input", [(5, 4.5, 6), (2, 1.9, 2.1)]))
    assert "(1-" not in text
    missing = shown("layers", ranked("disparity_input", [(5, 4.5, 6), (float("nan"),) * 3]))
    assert "(1-" not in missing


LAYERS = {"compared": "layers"}


def compared(step: bool) -> pd.DataFrame:
    runs = {"first": made_tables.layers(), "second": made_tables.layers(4)}
    tables = [table.assign(run=name) for name, table in runs.items()]
    if step:
        tables = [table.assign(step=100 * place) for place, table in enumerate(tables)]
    return pd.concat(tables, ignore_index=True)


@pytest.mark.parametrize("step", [False, True])
def test_compared_runs_are_lines_of_one_chart(step: bool, tmp_path: Path) -> None:
    ranking = pd.DataFrame(
        {
            "rank": [1, 2],
            "run": ["second", "first"],
            "disparity_input": [40.0, 20.0],
            "inertia_gap": [0.3, 0.2],
        }
    )
    path = run_folder(
        tmp_path / "run", "compare", record=LAYERS, compare=compared(step), ranking=ranking
    )
    text = page_of_folders(path)
    (found,) = charts(text)
    norm = {series["name"]: series for series in found[0]["series"]}
    assert list(norm) == ["first, visual", "first, text", "second, visual", "second, text"]
    assert norm["second, text"]["x"] == list(range(5))
    expected = made_tables.layers(4).query("group == 'text'")["norm_mean"]
    assert norm["second, text"]["y"] == pytest.approx(expected.tolist(), rel=1e-5)
    assert norm["first, visual"]["color"] == norm["first, text"]["color"]
    assert norm["first, visual"]["color"] != norm["second, visual"]["color"]
    assert norm["first, visual"]["dash"] != norm["first, text"]["dash"]
    assert "Ranking" in text
    assert "largest in second (40" in Reader(text).text


def test_labels_are_shown_as_they_are_given(tmp_path: Path) -> None:
    ranking = pd.DataFrame({"rank": [1], "run": ["my_run_2"]})
    path = run_folder(
        tmp_path / "run", "compare", record=LAYERS, compare=compared(False), ranking=ranking
    )
    assert "my_run_2" in Reader(page_of_folders(path)).text


@pytest.mark.parametrize("command", ["interface", "embeddings"])
def test_runs_without_curves_stand_side_by_side_as_they_are(command: str, tmp_path: Path) -> None:
    table = getattr(made_tables, command)().assign(run="only_one")
    ranking = pd.DataFrame({"rank": [1], "run": ["only_one"]})
    tables = {"compare": table, "ranking": ranking}
    path = run_folder(tmp_path / "run", "compare", record={"compared": command}, **tables)
    read = Reader(page_of_folders(path))
    assert "Side by side" in read.text
    assert read.text.count("only_one") >= len(table)
