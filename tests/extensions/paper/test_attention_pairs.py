"""Maps of one picture and prompt stand together, whatever order their runs come in."""

import numpy as np
import pytest
from PIL import Image
from support import made_tables

from normprobe.errors import NormprobeError
from normprobe.extensions.paper.figures import attention_pairs
from normprobe.runs.run_folder import RunStore


def asked(picture: str, prompt: str, shade: int) -> RunStore:
    record = {"command": "attention", "data": f"{picture}.png", "options": {"prompt": prompt}}
    run = RunStore({**record, "image_hashes": {f"{picture}.png": picture}})
    run.write_table("heatmaps", made_tables.heatmaps().assign(attention=shade))
    run.write_image("image", Image.new("RGB", (8, 6), (shade,) * 3))
    return run


def test_runs_of_one_question_share_its_picture() -> None:
    runs = [
        ("baseline", asked("cat", "Where?", 10)),
        ("baseline", asked("dog", "Where?", 20)),
        ("norm applied", asked("dog", "Where?", 30)),
        ("norm applied", asked("cat", "Where?", 40)),
    ]
    pairs = attention_pairs(runs)
    assert [image[0, 0, 0] for image in pairs.images] == [10, 20]
    shown = pairs.maps.groupby(["image", "run"], sort=False)["attention"].unique()
    assert {place: list(values) for place, values in shown.items()} == {
        (1, "baseline"): [10],
        (1, "norm applied"): [40],
        (2, "baseline"): [20],
        (2, "norm applied"): [30],
    }
    assert pairs.captions == ["picture 1: cat.png, “Where?”", "picture 2: dog.png, “Where?”"]
    assert pairs.warnings == []


def test_another_prompt_is_another_pair() -> None:
    runs = [("baseline", asked("cat", "Where?", 10)), ("norm applied", asked("cat", "Why?", 10))]
    pairs = attention_pairs(runs)
    assert pairs.maps["image"].nunique() == 2
    assert [warning.split(": ")[-1] for warning in pairs.warnings] == [
        "no run of norm applied",
        "no run of baseline",
    ]


def test_of_two_runs_of_one_question_the_first_counts() -> None:
    runs = [("baseline", asked("cat", "Where?", shade)) for shade in (10, 20)]
    pairs = attention_pairs(runs)
    assert [image[0, 0, 0] for image in pairs.images] == [10]
    assert pairs.maps["attention"].unique().tolist() == [10]


def test_a_single_picture_has_no_number() -> None:
    assert attention_pairs([("baseline", asked("cat", "Where?", 10))]).captions == [
        "cat.png, “Where?”"
    ]


def test_several_pictures_of_one_prompt_keep_their_order() -> None:
    run = asked("cat", "Which?", 10)
    run.note(image_hashes={"cat.png": "cat", "dog.png": "dog"})
    run.write_image("image_2", Image.new("RGB", (8, 6), (99,) * 3))
    first = made_tables.heatmaps().assign(image=1, attention=1.0)
    run.write_table("heatmaps", first)
    run.table("heatmaps").loc[first.index[-1], "image"] = 2
    pairs = attention_pairs([("baseline", asked("sun", "Where?", 5)), ("baseline", run)])
    assert [image[0, 0, 0] for image in pairs.images] == [5, 10, 99]
    assert pairs.maps["image"].unique().tolist() == [1, 2, 3]


def test_a_run_without_maps_is_refused() -> None:
    run = RunStore({"command": "attention"})
    with pytest.raises(NormprobeError, match="no table heatmaps"):
        attention_pairs([("baseline", run)])
    assert np.isfinite(attention_pairs([("b", asked("cat", "?", 1))]).maps["attention"]).all()
