"""Folders of ``Dataset.save_to_disk``, sound and damaged."""

import json

import datasets
import pytest

from data.published import TOLD_BY_COLUMNS, check_two_samples, hub_table
from normprobe.data.data_set import open_data
from normprobe.errors import NormprobeError


@pytest.mark.parametrize("name", TOLD_BY_COLUMNS)
def test_a_saved_data_set(tmp_path, name):
    dataset = datasets.Dataset(hub_table(name)).cast_column("image", datasets.Image())
    dataset.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"test": dataset}).save_to_disk(tmp_path / "splits")
    check_two_samples(open_data(str(tmp_path / "one")), name)
    check_two_samples(open_data(str(tmp_path / "splits")), name)


@pytest.mark.parametrize("file", ["state.json", "dataset_dict.json"])
def test_a_saved_data_set_stays_in_its_folder(tmp_path, file):
    dataset = datasets.Dataset(hub_table("pope"))
    dataset.save_to_disk(tmp_path / "secret")
    folder = tmp_path / "given"
    if file == "state.json":
        dataset.save_to_disk(folder)
        state = json.loads((folder / file).read_text())
        state["_data_files"][0]["filename"] = "../secret/data-00000-of-00001.arrow"
        (folder / file).write_text(json.dumps(state))
    else:
        folder.mkdir()
        (folder / file).write_text(json.dumps({"splits": ["../secret"]}))
    with pytest.raises(NormprobeError, match=r"it names .*outside of it"):
        open_data(str(folder))


def test_a_damaged_saved_data_set_is_refused(tmp_path):
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(NormprobeError, match="expected a saved data set"):
        open_data(str(tmp_path))
