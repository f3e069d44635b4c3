"""``--map`` on the specimen: the same tokens as the tables count, however the run came about."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from cli.conftest import assert_same_bytes, assert_two_lines
from PIL import Image
from support.read_page import Reader
from typer.testing import Result

from normprobe import Probe, load_run, pipeline
from normprobe.errors import NormprobeError
from normprobe.run import page_of

Run = Callable[..., Result]
Measured = Callable[..., Path]

ONE = ("--dtype", "float32", "-n", "2", "--map", "1")


@pytest.mark.parametrize("words", ["layers", "layers --align table", "interface"])
def test_means_over_a_map_are_those_of_its_sample(words: str, measured: Measured) -> None:
    run = load_run(measured(*words.split(), *ONE))
    where = "stage" if words == "interface" else "layer"
    found = run.tables["map"]
    assert found["image"].unique().tolist() == [1]
    (sample,) = found["sample_id"].unique()
    rows = run.samples
    rows = rows[(rows["sample_id"] == sample) & (rows["group"] == "visual")].set_index(where)
    shown = found[where].unique().tolist()
    assert shown == ([0, 2, 3, 4, 6] if where == "layer" else rows.index.tolist())
    for place, tokens in found.groupby(where):
        assert len(tokens) == rows.loc[place, "tokens"]
        assert tokens["norm"].mean() == pytest.approx(rows.loc[place, "norm_mean"], rel=1e-5)
        if where == "layer" and place > 0:
            assert tokens["angle"].mean() == pytest.approx(rows.loc[place, "angle_mean"], rel=1e-4)


def test_the_picture_and_both_figures_are_in_the_folder_and_on_the_page(
    measured: Measured,
) -> None:
    folder = measured("interface", *ONE)
    assert Image.open(folder / "image.png").mode == "RGB"
    assert not (folder / "image_2.png").exists()
    assert {"norm_map.png", "norm_map.pdf", "loudest.png"} <= {
        file.name for file in (folder / "plots").iterdir()
    }
    page = Reader(page_of([load_run(folder)]))
    assert ("alt", "norm map") in page.attributes
    assert ("alt", "loudest") in page.attributes
    assert "\nMap\n" not in page.text  # thousands of rows; the file is there to download
    assert ("download", "map.csv.gz") in page.attributes


def test_a_run_that_ended_before_its_map_is_resumed(
    run: Run, measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "norm_maps", interrupted)
        assert run("interface", *ONE, "-o", "out").exit_code == 130
    assert not (tmp_path / "out/map.csv").exists()
    other = run("interface", "--dtype", "float32", "-n", "2", "-o", "out", "--resume")
    assert_two_lines(other, "--map")
    assert run("interface", *ONE, "-o", "out", "--resume").exit_code == 0
    assert_same_bytes(tmp_path / "out", measured("interface", *ONE), "interface", "map")


def test_samples_without_pictures_are_refused(run: Run) -> None:
    assert_two_lines(
        run("layers", "--data", "text", "--map", "4"), "--map", "--data text: no pictures"
    )


def test_a_batch_of_a_processor_is_refused() -> None:
    with pytest.raises(NormprobeError, match="fixed inputs: no pictures"):
        Probe("specimen").layers({"input_ids": None}, map=1)


def test_a_measurement_without_maps_says_which_have_them() -> None:
    with pytest.raises(NormprobeError, match="grounding draws no map") as refused:
        Probe("specimen").measure("grounding", map=1)
    assert "interface or layers" in refused.value.remedy


def test_a_map_in_memory_is_that_of_the_folder(measured: Measured) -> None:
    found = Probe("specimen", dtype="float32").interface(limit=2, map=1)
    in_folder = load_run(measured("interface", *ONE)).tables["map"]
    pd.testing.assert_frame_equal(found.tables["map"], in_folder, check_dtype=False)
    assert {"norm_map", "loudest"} <= found.figures().keys()
