"""The section of a run of ``attention``: a line for each query, and its pictures."""

from pathlib import Path

from support import made_tables
from support.made_runs import run_folder
from support.read_page import charts, page_of_folders


def test_it_has_a_line_for_each_query_and_its_pictures(tmp_path: Path) -> None:
    table = made_tables.attention(layers=2, queries=("all", "dog")).sort_values(["query", "layer"])
    table["share_mean"], table["heads"] = [0.5, 0.2] * 2, 8
    path = run_folder(tmp_path / "run", "attention", attention=table)
    (path / "plots").mkdir()
    (path / "plots/heatmaps.png").write_bytes(b"\x89PNG")
    text = page_of_folders(path)
    (chart, *_), *_ = charts(text)
    assert [(line["name"], line["y"]) for line in chart["series"]] == [
        ("all", [0.5, 0.2]),
        ("dog", [0.5, 0.2]),
    ]
    assert "<summary>Figures" not in text  # the pictures are not folded away
    assert 'alt="heatmaps"' in text
    assert "Text gives 20 to 50 % of its attention to visual tokens" in text
