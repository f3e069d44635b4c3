"""The same table however the samples are put together."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from cli.conftest import assert_same_tables, assert_two_lines
from typer.testing import Result

from normprobe.data.data_set import bundled_data_dir
from normprobe.measurements.layers import measure

Run = Callable[..., Result]
Measured = Callable[..., Path]
LAYERS = ("layers", "--dtype", "float32", "-n", "12")
COARSE = ("layers", "--dtype", "bfloat16", "-n", "12")


@pytest.fixture
def one_by_one(measured: Measured) -> Path:
    return measured(*LAYERS, "-b", "1")


def test_batches_change_no_number(measured: Measured, one_by_one: Path) -> None:
    assert_same_tables(measured(*LAYERS, "-b", "4"), one_by_one)


def test_auto_changes_no_digit_in_float32(measured: Measured, one_by_one: Path) -> None:
    for name in ("layers.csv", "theory.csv", "assumptions.csv"):
        found = measured(*LAYERS, "-b", "auto") / name
        assert found.read_bytes() == (one_by_one / name).read_bytes()


def out_of_memory_above(most: int, monkeypatch: pytest.MonkeyPatch, message: str) -> list[int]:
    """A device with room for ``most`` samples a forward; returns the sizes that were tried."""
    real, tried = measure.observe, []

    def observe(model: Any, inputs: Any) -> measure.SeenLayers:
        samples = len(inputs["input_ids"])
        tried.append(samples)
        # The first batch fits, a later one does not.
        if samples > most and len(tried) > 1:
            raise torch.OutOfMemoryError(message)
        return real(model, inputs)

    monkeypatch.setattr(measure, "observe", observe)
    return tried


@pytest.mark.slow
@pytest.mark.parametrize(
    "message",
    [
        "CUDA out of memory. Tried to allocate 20.00 GiB.",
        "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.",
    ],
)
def test_auto_becomes_smaller_without_losing_a_sample(
    message: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        tried = out_of_memory_above(0, patch, message)
        result = run(*COARSE, "-b", "auto", "-o", "none")
    assert_two_lines(result, "out of memory", "--batch-size")
    assert max(tried) == 8
    assert tried[-1] == 1
    tried = out_of_memory_above(2, monkeypatch, message)
    result = run(*COARSE, "-b", "auto", "-o", "out")
    assert result.exit_code == 0, result.output
    assert json.loads(Path("out/run.json").read_text())["batch_size"] == 2
    rows = pd.read_parquet("out/samples")
    assert rows["sample_id"].nunique() == 12
    assert rows.groupby(["sample_id", "layer", "group"]).size().max() == 1
    assert pd.read_csv("out/layers.csv")["samples"].max() == 12


def test_a_given_batch_size_is_kept(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    out_of_memory_above(0, monkeypatch, "CUDA out of memory. Tried to allocate 20.00 GiB.")
    assert_two_lines(run(*LAYERS, "-b", "4", "-o", "out"), "out of memory", "--batch-size auto")


@pytest.mark.slow
def test_the_order_of_the_rows_changes_nothing(run: Run, tmp_path: Path) -> None:
    table = (bundled_data_dir() / "mmbench_dev_en_sample.tsv").read_text(encoding="utf-8")
    header, *rows = table.splitlines(keepends=True)
    for name, order in (("as_is", rows), ("shuffled", [*rows[::2], *reversed(rows[1::2])])):
        (tmp_path / f"{name}.tsv").write_text(header + "".join(order), encoding="utf-8")
        options = ["-b", "4", "--data", f"{name}.tsv", "-o", name]
        assert run("layers", "--dtype", "float32", "-n", "9", *options).exit_code == 0
    assert_same_tables(tmp_path / "shuffled", tmp_path / "as_is")
