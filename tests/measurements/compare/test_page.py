"""The section of a run of ``compare``: its ranking, and runs as lines of one chart."""

from pathlib import Path

import pandas as pd
import pytest
from support import made_tables
from support.made_runs import run_folder
from support.read_page import Reader, charts, page_of_folders

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
    path = run_folder(tmp_path / "run", "compare", record={"compared": command}, compare=table)
    read = Reader(page_of_folders(path))
    assert "Side by side" in read.text
    assert read.text.count("only_one") >= len(table)
