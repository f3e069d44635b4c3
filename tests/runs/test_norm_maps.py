"""Which pictures of a run are mapped, and what is said of those that cannot be."""

import logging

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from support.several_images import noise

from normprobe.data.data_set import DataSet
from normprobe.data.question import Question
from normprobe.inputs.builder import InputBuilder
from normprobe.model.token_places import NormMap, rows_at
from normprobe.runs.collecting import norm_maps
from normprobe.runs.run_folder import RunStore

RED, GREEN, BLUE = (Image.new("RGB", (8, 6), color) for color in ("red", "green", "blue"))
SAMPLES = {"one": [RED], "text": [], "again": [RED], "two": [GREEN, RED], "three": [BLUE]}


@pytest.fixture
def data() -> DataSet:
    questions = [
        Question("made", name, lambda images=tuple(images): ("What?", images), bool(images))
        for name, images in SAMPLES.items()
    ]
    return DataSet("made", questions, {})


def rows(*names: str) -> pd.DataFrame:
    """Sample rows; each sample has several."""
    return pd.DataFrame({"sample_id": [f"made/{n}" for n in names or [*SAMPLES, *SAMPLES]]})


def one_token(model, picture) -> NormMap:
    brightness = np.asarray(picture.image).mean(keepdims=True).ravel()
    return NormMap(rows_at(np.array([[0.0, 0.0, 1.0, 1.0]]), layer=0, norm=brightness), {})


def mapped(data, norm_map, measured, pictures=4):
    run = RunStore({})
    tables = norm_maps(run, None, data, InputBuilder(None), norm_map, measured, pictures)
    return run, tables.get("map")


def test_each_picture_is_mapped_once_and_kept(data: DataSet) -> None:
    run, table = mapped(data, one_token, rows())
    assert table["sample_id"].tolist() == ["made/one", "made/two", "made/three"]
    assert table["image"].tolist() == [1, 2, 3]
    assert list(table.columns[:5]) == ["sample_id", "image", "layer", "visual_token", "left"]
    kept = dict(run.images())
    assert list(kept) == ["image", "image_2", "image_3"]
    assert [image.getpixel((0, 0)) for image in kept.values()] == [
        image.getpixel((0, 0)) for image in (RED, GREEN, BLUE)
    ]


def test_no_more_pictures_than_asked_for_and_only_of_measured_samples(data: DataSet) -> None:
    _, table = mapped(data, one_token, rows(), pictures=2)
    assert table["sample_id"].tolist() == ["made/one", "made/two"]
    _, table = mapped(data, one_token, rows("three", "text"))
    assert table["sample_id"].tolist() == ["made/three"]


def test_other_images_of_the_prompt_stay_when_one_is_replaced(data: DataSet) -> None:
    built = []

    class Builder:
        def build(self, samples):
            built.extend(samples)
            return {}

    def look(model, picture):
        picture.build(noise(0, (8, 6)))
        alone.append(picture.alone)
        return NormMap(pd.DataFrame(), {})

    alone: list[bool] = []
    norm_maps(RunStore({}), None, data, Builder(), look, rows("two"), 4)
    assert [sample.id for sample in built] == ["made/two"] * 2
    assert built[0].images[1] == RED
    assert built[1].images[0] == GREEN
    assert built[0].images[0] != GREEN and built[1].images[1] != RED
    assert alone == [False, False]


def test_what_is_unknown_is_said_once(data: DataSet, caplog: pytest.LogCaptureFixture) -> None:
    def unknown(model, picture):
        reasons = {"projector_output": f"no grid ({picture.image.getpixel((0, 0))})"}
        return NormMap(one_token(model, picture).rows.head(int(picture.image == RED)), reasons)

    with caplog.at_level(logging.WARNING):
        run, table = mapped(data, unknown, rows())
    assert table["sample_id"].tolist() == ["made/one"]
    told = ["no map of projector output: no grid ((255, 0, 0))"]
    assert run.record["warnings"] == told
    assert [message.removeprefix("warning: ") for message in caplog.messages] == told


def test_no_place_is_known_and_the_run_goes_on(data: DataSet) -> None:
    run, table = mapped(data, lambda *_: NormMap(pd.DataFrame(), {"visual tokens": "why"}), rows())
    assert table is None
    assert not dict(run.images())
    assert run.record["warnings"] == ["no map of visual tokens: why"]
