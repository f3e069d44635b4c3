"""Runs of ``attention`` side by side."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from support import made_tables

from normprobe import Run, compare
from normprobe.measurements.attention.compared import measures
from normprobe.runs.run_folder import RunStore


def test_means_are_over_layers_that_attend_and_of_all_text() -> None:
    found = measures(made_tables.attention(layers=3))
    assert found["share"] == pytest.approx(np.mean([0.6 / 1, 0.6 / 3]))
    assert found["share_to_even"] == pytest.approx(np.mean([0.6 / 1, 0.6 / 3]) / 0.9)
    assert found["entropy"] == pytest.approx(np.mean([0.79, 0.77]))
    assert found["vertical_center"] == pytest.approx(np.mean([0.52, 0.56]))


def run(name: str, picture: str, heatmaps: pd.DataFrame | None) -> Run:
    store = RunStore(
        {"command": "attention", "model": name, "data": "x", "image_hashes": {"x": picture}}
    )
    store.write_table("attention", made_tables.attention())
    if heatmaps is not None:
        store.write_table("heatmaps", heatmaps)
    store.write_image("image", Image.new("RGB", (60, 40)))
    store.finish()
    return Run(store)


def test_maps_of_one_picture_stand_below_each_other() -> None:
    maps = made_tables.heatmaps(layers=(2, 7))
    found = compare([run("a", "p", maps), run("b", "p", maps.assign(attention=0.01))])
    joined = found.tables["heatmaps"]
    assert joined.groupby("run", sort=False).size().to_dict() == dict.fromkeys("ab", len(maps))
    drawn = found.figures()["heatmaps"]
    titles = [axes.get_title() for axes in drawn.axes if axes.get_title()]
    pairs = [(name, query) for query in ("all text", "red cup") for name in "ab"]
    assert titles == [f"{name}, {query}\nlayer {n}" for name, query in pairs for n in (2, 7)]


@pytest.mark.parametrize(("picture", "maps"), [("other", True), ("p", False)])
def test_maps_of_other_pictures_or_none_are_not_paired(picture: str, maps: bool) -> None:
    drawn = made_tables.heatmaps()
    found = compare([run("a", "p", drawn), run("b", picture, drawn if maps else None)])
    assert "heatmaps" not in found.tables
    assert list(found.figures()) == ["compare_attention"]
