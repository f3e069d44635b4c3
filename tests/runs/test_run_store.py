"""A run in memory, and that a folder answers in the same way."""

import inspect

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from normprobe.errors import NormprobeError
from normprobe.runs.run_folder import COMPLETE, PARTIAL, RunFolder, RunStore

RECORD = {"command": "layers", "model": "org/model"}


@pytest.fixture(params=["memory", "folder"])
def run(request, tmp_path):
    if request.param == "memory":
        return RunStore(RECORD)
    return RunFolder.create(tmp_path / "run", overwrite=False, record=RECORD)


def rows(*samples):
    return pd.DataFrame({"sample_id": samples, "mean": 0.1, "bins": [[1, 2]] * len(samples)})


def names_of(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


def test_a_folder_offers_what_memory_offers():
    assert names_of(RunStore) <= names_of(RunFolder)
    for name in names_of(RunStore):
        ours, theirs = getattr(RunStore, name), getattr(RunFolder, name)
        if inspect.isfunction(ours):
            assert list(inspect.signature(ours).parameters) == list(
                inspect.signature(theirs).parameters
            ), name


def test_in_memory_there_is_no_folder():
    assert RunStore(RECORD).path is None
    assert RunStore(RECORD).name == "layers"


def test_it_begins_partial_and_empty(run):
    assert run.record == {**RECORD, "status": PARTIAL, "warnings": [], "files": []}
    assert run.command == "layers"
    assert run.writer == 0
    assert run.table_names == []
    assert run.rows().empty
    assert run.sample_ids() == set()
    assert list(run.images()) == []


def test_the_record_that_it_was_given_stays_as_it_was():
    given = dict(RECORD)
    RunStore(given).note(model="other")
    assert given == RECORD


def test_rows_keep_their_order(run):
    run.append(rows("a", "b"))
    run.append(rows())
    run.append(rows("c"))
    assert run.rows()["sample_id"].tolist() == ["a", "b", "c"]
    assert run.rows()["bins"].map(list).tolist() == [[1, 2]] * 3
    assert run.rows().index.tolist() == [0, 1, 2]
    assert run.sample_ids() == {"a", "b", "c"}


def test_a_column_that_is_empty_in_one_part(run):
    run.append(pd.DataFrame({"sample_id": ["a"], "x": [np.nan]}))
    run.append(pd.DataFrame({"sample_id": ["b"], "x": [2.0]}))
    assert run.rows()["x"].dtype == float
    assert run.rows()["x"].tolist()[1] == 2.0


def test_tables_by_name(run):
    table = pd.DataFrame({"layer": [0, 1], "norm_mean": [0.1 + 0.2, np.nan]})
    run.write_table("layers", table)
    run.write_table("assumptions", table.iloc[:0])
    assert run.table_names == ["assumptions", "layers"]
    pd.testing.assert_frame_equal(run.table("layers"), table)
    assert run.has_table("assumptions")
    assert not run.has_table("theory")


def test_of_the_rows_some_columns(run):
    run.append(pd.DataFrame({"sample_id": ["a"], "mean": [1.0]}))
    assert list(run.rows(["mean", "absent"])) == ["mean"]


def test_rows_of_a_table_that_has_some(run):
    run.write_table("layers", pd.DataFrame({"layer": [0]}))
    run.write_table("theory", pd.DataFrame({"layer": []}))
    assert run.rows_of("layers")["layer"].tolist() == [0]
    assert run.rows_of("theory") is None
    assert run.rows_of("assumptions") is None


def test_a_table_written_again_replaces_the_first(run):
    for layer in (0, 1):
        run.write_table("layers", pd.DataFrame({"layer": [layer]}))
    assert run.table_names == ["layers"]
    assert run.table("layers")["layer"].tolist() == [1]


def test_images_by_name(run):
    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    run.write_image("image", Image.fromarray(pixels))
    np.testing.assert_array_equal(run.image("image"), pixels)
    ((name, image),) = run.images()
    assert name == "image"
    np.testing.assert_array_equal(np.asarray(image), pixels)


def test_an_image_of_any_mode_is_read_in_color(run):
    run.write_image("image", Image.new("L", (3, 2), 7))
    np.testing.assert_array_equal(run.image("image"), np.full((2, 3, 3), 7, dtype=np.uint8))


def test_what_is_absent_is_a_known_failure(run):
    with pytest.raises(NormprobeError):
        run.table("layers")
    with pytest.raises(NormprobeError):
        run.image("image")


def test_in_memory_the_failure_names_what_there_is():
    run = RunStore(RECORD)
    with pytest.raises(NormprobeError) as caught:
        run.table("theory")
    assert caught.value.problem == "the run of layers holds no table theory"
    assert caught.value.remedy == "it holds none"
    run.write_table("layers", rows("a"))
    with pytest.raises(NormprobeError) as caught:
        run.table("theory")
    assert caught.value.remedy == "it holds layers"
    with pytest.raises(NormprobeError, match="the run of layers holds no image photo"):
        run.image("photo")


def test_facts_and_warnings(run):
    run.note(device="cpu", seconds=1)
    for text in ("slow attention", "slow attention", "bf16"):
        run.add_warning(text)
    run.finish(seconds=1.5)
    assert run.record["device"] == "cpu"
    assert run.record["seconds"] == 1.5
    assert run.record["warnings"] == ["slow attention", "bf16"]
    assert run.record["status"] == COMPLETE


def test_rows_outlast_the_end(run):
    run.append(rows("a"))
    run.append(rows("b"))
    run.finish()
    assert run.rows()["sample_id"].tolist() == ["a", "b"]
    assert run.sample_ids() == {"a", "b"}


def test_a_failure_passes_and_a_success_keeps_everything(run):
    with run.discarded_on_failure():
        run.append(rows("a"))
    with pytest.raises(RuntimeError, match="broken"), run.discarded_on_failure():
        raise RuntimeError("broken")
    assert run.sample_ids() == {"a"}


def test_a_failure_before_the_first_row_leaves_no_folder(tmp_path):
    run = RunFolder.create(tmp_path / "run", overwrite=False, record=RECORD)
    with pytest.raises(RuntimeError, match="broken"), run.discarded_on_failure():
        raise RuntimeError("broken")
    assert not run.path.exists()
