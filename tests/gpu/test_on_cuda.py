"""The numbers of a CUDA device are those of the CPU, however the model is loaded and run.

``make gpu`` runs these. Without a device each of them is skipped.
"""

import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.flat import flat
from support.tiny.sounds import SOUNDS_ALONE
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import EVERY, NEEDS, VISION_ENCODERS, WITHOUT_IMAGES, tiny_model
from transformers import AutoModelForImageTextToText

from normprobe import Probe, find_parts
from normprobe.hooks import observing, run_until
from normprobe.inputs.on_device import moved_to
from normprobe.inputs.processor import load_processor
from normprobe.measurements import measurement
from normprobe.model.measured_model import MeasuredModel
from normprobe.specimen import SPECIMEN_DIR

pytestmark = pytest.mark.gpu

SAMPLES = 6
#: Relative to the CPU in float32. TF32 and other kernels err by 1e-3 at most, float16 and bfloat16
#: by about eight roundings of 2 ** -11 and 2 ** -8.
TOLERANCE = {"float32": 1e-3, "float16": 5e-3, "bfloat16": 3e-2}
#: Which tokens this one attends to turns on a rounding.
ON_EDGE = {"qwen4_exp": 1e-2}
#: Types that a tiny picture is made for.
PICTURED = sorted({*EVERY} - {*VISION_ENCODERS, *WITHOUT_IMAGES, *SOUNDS_ALONE})


@pytest.fixture(autouse=True)
def _device() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.fixture(scope="module")
def on_cpu() -> dict[str, pd.DataFrame]:
    probe = Probe("specimen", device="cpu", dtype="float32")
    return {name: probe.measure(name, limit=SAMPLES).table for name in ("layers", "interface")}


def assert_close(found: pd.DataFrame, expected: pd.DataFrame, tolerance: float) -> None:
    found, expected = flat(found), flat(expected)
    columns = ["group", "tokens", "samples"]
    pd.testing.assert_frame_equal(found[columns], expected[columns])
    np.testing.assert_allclose(found["norm_mean"], expected["norm_mean"], rtol=tolerance)


@pytest.mark.parametrize("name", ["layers", "interface"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_each_dtype_gives_the_norms_of_the_cpu(
    dtype: str, name: str, on_cpu: dict[str, pd.DataFrame]
) -> None:
    found = Probe("specimen", device="cuda", dtype=dtype).measure(name, limit=SAMPLES).table
    assert_close(found, on_cpu[name], TOLERANCE[dtype])


@pytest.mark.parametrize("batch_size", [4, "auto"])
def test_batches_give_the_norms_of_the_cpu(
    batch_size: Any, on_cpu: dict[str, pd.DataFrame]
) -> None:
    probe = Probe("specimen", device="cuda", dtype="bfloat16")
    found = probe.layers(limit=SAMPLES, batch_size=batch_size).table
    assert_close(found, on_cpu["layers"], TOLERANCE["bfloat16"])


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "flash_attention_2", "flex_attention"])
def test_each_attention_kernel_gives_the_norms_of_the_cpu(
    kernel: str, on_cpu: dict[str, pd.DataFrame]
) -> None:
    if kernel == "flash_attention_2" and find_spec("flash_attn") is None:
        pytest.skip("flash-attn is not installed")
    if kernel == "flex_attention" and find_spec("triton") is None:
        pytest.skip("triton is not installed")
    probe = Probe("specimen", device="cuda", dtype="bfloat16", attn_implementation=kernel)
    assert_close(probe.layers(limit=SAMPLES).table, on_cpu["layers"], TOLERANCE["bfloat16"])


def test_a_model_that_accelerate_spreads_gives_the_norms_of_the_cpu(
    on_cpu: dict[str, pd.DataFrame],
) -> None:
    probe = Probe("specimen", device="balanced", dtype="float32")
    assert_close(probe.layers(limit=SAMPLES).table, on_cpu["layers"], TOLERANCE["float32"])


@pytest.fixture
def compiled() -> Iterator[Any]:
    model = AutoModelForImageTextToText.from_pretrained(SPECIMEN_DIR, dtype=torch.float32)
    model.to("cuda").compile()
    yield model
    torch.compiler.reset()


def test_a_compiled_model_gives_the_norms_of_the_cpu(
    compiled: Any, on_cpu: dict[str, pd.DataFrame]
) -> None:
    probe = Probe(compiled, load_processor(str(SPECIMEN_DIR)))
    assert_close(probe.layers(limit=SAMPLES).table, on_cpu["layers"], TOLERANCE["float32"])


def test_several_processes_give_the_table_of_one(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device: two processes need two")
    command = ["-m", "normprobe", "layers", "specimen", "-n", "8", "--dtype", "float32"]
    launched = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *command]
    for name, words in (("one", command), ("two", launched)):
        subprocess.run([sys.executable, *words, "-o", str(tmp_path / name)], check=True)
    one, two = (pd.read_csv(tmp_path / name / "layers.csv") for name in ("one", "two"))
    assert_close(two, one, 1e-6)


@pytest.mark.parametrize("model_type", PICTURED)
def test_each_model_type_gives_the_rows_of_the_cpu(model_type: str) -> None:
    """What a row comes from is asked of the device: its rounding is not the CPU's."""
    if model_type in NEEDS:
        pytest.importorskip(NEEDS[model_type])
    model = tiny_model(model_type)
    inputs = tiny_inputs(model, 2)
    expected = Probe(model, special_token_ids=SPECIAL_IDS).layers(inputs)
    found = Probe(tiny_model(model_type).to("cuda"), special_token_ids=SPECIAL_IDS).layers(inputs)
    assert_close(found.table, expected.table, ON_EDGE.get(model_type, TOLERANCE["float32"]))
    assert found.record.get("doubts") == expected.record.get("doubts")


@pytest.mark.parametrize("model_type", ["llava", "llava_next", "ovis2", "qwen2_5_vl"])
def test_measuring_waits_for_the_device_no_more_often_than_the_model(model_type: str) -> None:
    """CUDA itself warns whenever the host waits for it."""
    model = tiny_model(model_type)
    inputs = tiny_inputs(model, 2)
    model.to("cuda")
    measured = MeasuredModel(model, find_parts(model), SPECIAL_IDS)
    layers = measurement("layers")
    layers.sample_rows(measured, inputs)  # which placeholders are structural is asked once

    def bare() -> None:
        with observing(model):
            run_until(model, moved_to(model, inputs), leaving=measured.decoder_layers[-1])

    bare()  # what waits in a first forward alone
    measuring, without = waits(lambda: layers.observe(measured, inputs)), waits(bare)
    assert measuring.total() <= without.total(), measuring - without


def waits(work: Any) -> Counter[str]:
    """Where the host waits, and how often."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return Counter(
        f"{warning.filename}:{warning.lineno}"
        for warning in caught
        if "called a synchronizing" in str(warning.message)  # not that the mode is a prototype
    )
