import json
import platform
from pathlib import Path

import numpy
import pytest

from normprobe.errors import NormprobeError
from normprobe.runs.begin import installed_version, provenance, resumed, unfinished_run
from normprobe.runs.run_folder import RunFolder
from normprobe.schema import SCHEMA_VERSION


def test_the_record_is_complete_and_json_able():
    record = provenance(["normprobe", "layers"], {"limit": 5, "output": Path("x")}, model="a/b")
    assert json.loads(json.dumps(record)) == record
    assert record["schema_version"] == SCHEMA_VERSION
    assert record["argv"] == ["normprobe", "layers"]
    assert record["options"] == {"limit": 5, "output": "x"}
    assert record["model"] == "a/b"
    assert record["versions"]["numpy"] == numpy.__version__
    assert record["versions"]["python"] == platform.python_version()
    assert {"normprobe", "torch", "transformers", "accelerate", "datasets", "pandas"} <= set(
        record["versions"]
    )
    assert record["created"].endswith("+00:00")


def test_of_unfinished_runs_the_one_begun_last_goes_on(tmp_path):
    """Whatever the folders are called; not one that is complete, nor on other data."""
    for name, day, data in [
        ("layers-b", 1, "sample"),
        ("layers-a", 3, "sample"),
        ("layers-c", 2, "sample"),
        ("layers-complete", 4, "sample"),
        ("layers-other-data", 5, "boxes"),
    ]:
        record = {"command": "layers", "created": f"2026-01-0{day}T00:00:00+00:00", "data": data}
        run = RunFolder.create(tmp_path / name, overwrite=False, record=record)
        if name == "layers-complete":
            run.finish(seconds=1.0)
        run.unlock()
    record = {"command": "layers", "data": "sample"}
    assert unfinished_run(tmp_path, record) == tmp_path / "layers-a"


@pytest.mark.parametrize(
    ("option", "before", "now"),
    [
        ("batch_size", 4, 2),
        ("attn_implementation", "eager", "sdpa"),
        ("align", "table", "prompt"),
        ("align", "table", None),
    ],
)
def test_a_run_goes_on_with_what_makes_its_numbers(tmp_path, option, before, now):
    """Another attention rounds otherwise; another batch size does what it did."""
    free = option == "batch_size"
    record = {"command": "layers", "schema_version": SCHEMA_VERSION, "versions": {}}
    run = RunFolder.create(
        tmp_path, overwrite=False, record={**record, "options": {option: before}}
    )
    run.unlock()
    if free:
        assert resumed(tmp_path, {**record, "options": {option: now}}) is not None
        return
    with pytest.raises(
        NormprobeError, match=f"--{option.replace('_', '-')} {before}; this command"
    ):
        resumed(tmp_path, {**record, "options": {option: now}})


def test_an_absent_package_has_no_version():
    assert installed_version("no-such-distribution-of-ours") is None
