"""A data set in batches: all of it in order, without what the processor refuses."""

import json

import pytest
from PIL import Image

from normprobe.data.data_set import open_data
from normprobe.data.rows import BadRows
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.prefetch import batches
from normprobe.inputs.processor import load_processor


def test_samples_that_the_processor_refuses_can_be_left_out(tmp_path, samples):
    config = {"image_processor_type": "Qwen2VLImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    qwen = load_processor(str(tmp_path))
    line = Image.new("RGB", (4000, 10))
    lines = [Sample(f"pope/{number}", "What?", (line,)) for number in (7, 8, 9)]
    bad = BadRows(skip=True)
    parts = [part for part, _ in batches([*samples[:3], *lines], InputBuilder(qwen), 2, bad)]
    assert [[sample.id for sample in part] for part in parts] == [
        [samples[0].id, samples[1].id],
        [samples[2].id],
    ]
    assert [row.sample for row in bad.skipped] == ["pope/7", "pope/8", "pope/9"]
    assert all("aspect ratio" in row.reason for row in bad.skipped)
    with pytest.raises(NormprobeError, match="refuses pope/7"):
        list(batches([*samples[:3], *lines], InputBuilder(qwen), 2))


def test_batches_cover_the_data_in_order(specimen_processor):
    data = open_data("sample", limit=5)
    parts = list(batches(data, InputBuilder(specimen_processor), 2))
    assert [len(part) for part, _ in parts] == [2, 2, 1]
    assert [sample.id for part, _ in parts for sample in part] == data.ids
    assert [inputs["input_ids"].shape[0] for _, inputs in parts] == [2, 2, 1]
