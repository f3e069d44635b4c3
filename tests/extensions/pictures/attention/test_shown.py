"""What a terminal and the page show of ``attention``."""

import base64
import io
import re
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image
from support import made_tables
from support.flat import tidied
from support.made_runs import ATTACK, add_figure, run_folder
from support.printed import printed
from support.read_page import Reader, drawn, page_of_folders

from normprobe.extensions.pictures.attention.shown import print_attention
from normprobe.runs.run_folder import RunFolder


def test_layers_without_it_and_regions_without_a_box_are_told():
    text = printed(print_attention, tidied("attention", made_tables.attention()))
    assert "from red cup (12 tokens)" in text
    assert [line.split()[1:] for line in text.splitlines() if line.startswith("    2 ")] == [
        6 * ["-"],
        6 * ["-"],
    ]
    assert "- a layer without softmax attention" in text
    assert "inside the box / outside" in text
    without = tidied("attention", made_tables.attention(target=False))
    assert "inside the box" not in printed(print_attention, without)


def attention(folder: Path, **tables: pd.DataFrame) -> Path:
    table = made_tables.attention(layers=2, queries=("all", "dog")).sort_values(["query", "layer"])
    table["share_mean"], table["heads"] = [0.5, 0.2] * 2, 8
    options = {"options": {"prompt": f"Which animal?\n{ATTACK}"}}
    tables["attention"] = tidied("attention", table)
    return run_folder(folder / "run", "attention", record=options, **tables)


def test_the_question_and_its_picture_are_shown(tmp_path: Path) -> None:
    path = attention(tmp_path)
    RunFolder.open(path).write_image("image", Image.new("RGB", (60, 40), "red"))
    text = page_of_folders(path)
    assert f"Which animal?{ATTACK}" in Reader(text).text
    (url,) = re.findall(r'<img src="data:image/jpeg;base64,([^"]*)"', text)
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(url))), int)
    assert picture.shape == (40, 60, 3)
    assert abs(picture - [255, 0, 0]).max() < 4


def test_a_map_is_divided_where_places_begin_and_end(tmp_path: Path) -> None:
    """Two tokens look at the halves of a picture, a third at its upper right quarter."""
    places = pd.DataFrame(
        {
            "layer": 1,
            "query": "all",
            "left": [0.0, 0.5, 0.5],
            "top": [0.0, 0.0, 0.0],
            "right": [0.5, 1.0, 1.0],
            "bottom": [1.0, 1.0, 0.5],
            "attention": [0.1, 0.2, 0.5],
        }
    )
    path = attention(tmp_path, heatmaps=places)
    RunFolder.open(path).write_image("image", Image.new("RGB", (448, 448), "red"))
    add_figure(path, "heatmaps")
    text = page_of_folders(path)
    (grids,) = drawn(text, "grid")
    (grid,) = grids["maps"]
    assert (grid["x"], grid["y"], grid["label"]) == ([0, 0.5, 1], [0, 0.5, 1], "layer 1")
    # 0.1 of 0.8 over half of the picture; 0.2 over the other half; 0.5 over a quarter.
    even = np.array([[0.1 / 0.5, 0.2 / 0.5 + 0.5 / 0.25], [0.1 / 0.5, 0.2 / 0.5]]) / 0.8
    np.testing.assert_allclose(grid["values"], even, rtol=1e-3)
    assert grids["pictures"][grid["picture"]]["ratio"] == 1
    assert ("alt", "heatmaps") not in Reader(text).attributes  # it would be the same again
