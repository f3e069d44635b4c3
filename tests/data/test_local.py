"""Which benchmark a local table holds: by its columns, or by its name."""

import pyarrow as pa
import pytest
from pyarrow import parquet

from data.files import write_tsv
from data.published import TOLD_BY_COLUMNS, base64_image, check_two_samples, hub_table
from normprobe.data.data_set import open_data
from normprobe.errors import NormprobeError


@pytest.mark.parametrize("name", TOLD_BY_COLUMNS)
def test_parquet_is_told_by_its_columns(tmp_path, name):
    parquet.write_table(hub_table(name), tmp_path / "test-00000-of-00001.parquet")
    check_two_samples(open_data(str(tmp_path)), name)
    check_two_samples(open_data(str(tmp_path / "test-00000-of-00001.parquet")), name)


@pytest.mark.parametrize("name", TOLD_BY_COLUMNS)
def test_shards_and_row_order_leave_ids_alone(tmp_path, name):
    whole, shards = tmp_path / "whole", tmp_path / "shards"
    for folder in (whole, shards):
        folder.mkdir()
    parquet.write_table(hub_table(name), whole / "test.parquet")
    for shard in (0, 1):
        table = hub_table(name, [1 - shard])
        parquet.write_table(table, shards / f"test-0000{shard}-of-00002.parquet")
    assert sorted(open_data(str(shards)).ids) == sorted(open_data(str(whole)).ids)
    assert open_data(str(shards), limit=1).ids == open_data(str(whole), limit=1).ids
    check_two_samples(open_data(str(shards)), name)
    assert open_data(str(shards)).provenance["sources"][0]["shards"] == 2


def test_parquet_of_another_benchmark_is_refused(tmp_path):
    table = pa.table({"index": [0], "question": ["Which?"], "A": ["cat"], "image": ["7"]})
    parquet.write_table(table, tmp_path / "val.parquet")
    with pytest.raises(NormprobeError, match="missing columns question_id; received index"):
        open_data(str(tmp_path / "val.parquet"))


@pytest.mark.parametrize("suffix", ["tsv", "parquet"])
def test_a_table_of_no_benchmark_is_refused(tmp_path, suffix):
    path = tmp_path / f"x.{suffix}"
    if suffix == "tsv":
        write_tsv(path, [["a", "a\x1bb"], ["1", "2"]])
    else:
        parquet.write_table(pa.table({"a": [1], "a\x1bb": [2]}), path)
    with pytest.raises(NormprobeError, match="missing columns") as refusal:
        open_data(str(path))
    assert "\x1b" not in refusal.value.problem  # a file must not steer the terminal


@pytest.mark.parametrize("name", ["mmbench_dev_cn_20231003", "MMBench_DEV_CN", "MMBench_CN"])
def test_mmbench_in_chinese_is_told_by_the_name_of_its_file(tmp_path, name):
    columns = ["index", "question", "hint", "A", "B", "C", "D", "image"]
    row = ["1", "哪一个", "", "猫", "狗", "", "", base64_image()]
    (sample,) = open_data(str(write_tsv(tmp_path / f"{name}.tsv", [columns, row])))
    assert sample.id == "mmbench_cn/1"
    assert sample.prompt == "哪一个\nA. 猫\nB. 狗\n请直接回答选项字母。"
