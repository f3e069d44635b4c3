"""Parts of sample rows: damaged ones, and rows that are there twice."""

import os
from pathlib import Path

import pandas as pd
import pytest

from normprobe import NormprobeError
from normprobe.runs.run_folder import MERGED, SampleParts


def rows(*samples: str) -> pd.DataFrame:
    table = pd.DataFrame({"sample_id": samples, "layer": 0, "group": "text", "mean": 0.1})
    return pd.concat([table, table.assign(layer=1)])


@pytest.fixture
def parts(tmp_path: Path) -> SampleParts:
    made = SampleParts(tmp_path)
    for sample in "abc":
        made.append(rows(sample))
    return made


def _truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _foreign(file: Path) -> None:
    pd.DataFrame({"x": [1]}).to_parquet(file)


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize("damage", [_truncate, _empty, _foreign, _folder, _pipe])
def test_a_damaged_part_is_named_and_its_samples_are_missing(parts, damage, tmp_path):
    file = tmp_path / "samples/part-00001.parquet"
    damage(file)
    with pytest.raises(NormprobeError) as refused:
        parts.rows()
    assert str(file) in refused.value.problem
    assert "--resume" in refused.value.remedy
    (named,) = parts.set_damaged_aside()
    assert named.startswith("part-00001.parquet: ")
    assert (tmp_path / "samples/damaged-part-00001.parquet").exists()
    assert parts.sample_ids() == {"a", "c"}
    parts.append(rows("b"))
    parts.merge()
    assert sorted(parts.rows()["sample_id"].unique()) == ["a", "b", "c"]


def test_a_damaged_whole_is_measured_again(parts, tmp_path):
    parts.merge()
    _truncate(tmp_path / MERGED)
    (named,) = parts.set_damaged_aside()
    assert named.startswith("samples.parquet: ")
    assert parts.sample_ids() == set()


def test_nothing_damaged_is_nothing_to_say(parts):
    assert parts.set_damaged_aside() == []


def test_rows_that_are_there_twice_are_refused(parts):
    parts.append(rows("c", "d"))
    for ask in (parts.rows, parts.merge):
        with pytest.raises(NormprobeError) as refused:
            ask()
        assert "2 rows twice (sample_id c, layer 0, group text)" in refused.value.problem
        assert "--overwrite" in refused.value.remedy
