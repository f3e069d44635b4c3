"""Two processes on one machine, as ``torchrun`` starts them."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from cli.conftest import assert_same_bytes, assert_same_tables, assert_two_lines
from support.commands import Ended, Forked, torchrun
from support.processors import make_checkpoint
from typer.testing import Result

from normprobe.errors import NormprobeError
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.load.loading import load_model

Run = Callable[..., Result]
Measured = Callable[..., Path]

NORMPROBE = ("-m", "normprobe")


@pytest.fixture
def two_forks(start_two: Callable[..., list[Forked]]) -> Callable[..., Ended]:
    """As ``start_two``, until both have ended."""

    def run(*arguments: str) -> Ended:
        forks = start_two(*arguments)
        codes, outs, errors = zip(*(fork.wait(timeout=120) for fork in forks), strict=True)
        return Ended(max(codes), "".join(outs), "".join(errors))

    return run


@pytest.fixture
def two_processes(tmp_path: Path) -> Callable[..., Ended]:
    return lambda *arguments: torchrun(tmp_path, *NORMPROBE, *arguments)


@pytest.mark.parametrize(
    "launcher", ["two_forks", pytest.param("two_processes", marks=pytest.mark.slow)]
)
def test_two_processes_give_the_table_of_one(
    launcher: str, request: pytest.FixtureRequest, measured: Measured, tmp_path: Path
) -> None:
    layers = ["layers", "--dtype", "float32", "--device", "cpu", "-n", "18", "-b", "2"]
    layers += ["--map", "1"]
    done = request.getfixturevalue(launcher)(*layers, "-q", "-o", "two")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{(tmp_path / 'two').resolve()}\n" or done.stdout == "two\n"
    tables = ("layers", "theory", "assumptions", "map")
    assert_same_bytes(tmp_path / "two", measured(*layers), *tables)
    assert json.loads((tmp_path / "two/run.json").read_text())["status"] == "complete"
    rows = pd.read_parquet(tmp_path / "two/samples")
    assert rows.groupby(["sample_id", "layer", "group"]).size().max() == 1


@pytest.mark.slow
@pytest.mark.skipif(torch.accelerator.is_available(), reason="one GPU is not for two processes")
def test_processes_meet_where_auto_means_the_cpu(run: Run, tmp_path: Path) -> None:
    """Each aligns its own copy of the model, on the same prompts."""
    layers = ["layers", "-n", "3", "--align", "prompt"]
    done = torchrun(tmp_path, *NORMPROBE, *layers, "-q", "-o", "two")
    assert done.returncode == 0, done.stderr
    assert run(*layers, "-o", "one").exit_code == 0
    assert_same_tables(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
def test_more_processes_than_samples(run: Run, tmp_path: Path) -> None:
    layers = ["layers", "--dtype", "float32", "--device", "cpu", "-n", "1"]
    done = torchrun(tmp_path, *NORMPROBE, *layers, "-o", "two")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Decoder layers") == 1
    assert done.stderr.count("reads 1 of 1 weight file") == 1
    assert run(*layers, "-o", "one").exit_code == 0
    assert_same_tables(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
def test_a_failure_of_the_main_process_ends_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.txt").write_text("mine")
    done = torchrun(tmp_path, *NORMPROBE, "layers", "-n", "2", "--device", "cpu", "-o", "out")
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.count("error: out exists") == 1


@pytest.mark.parametrize("lost", [0, 1])
def test_a_process_that_is_left_alone_says_so(
    lost: int, start_two: Callable[..., list[Forked]], tmp_path: Path
) -> None:
    """``torchrun`` would end it; not every launcher does."""
    forks = start_two("layers", "--device", "cpu", "-o", "out")
    while not list(tmp_path.glob("out/samples/part-*")):
        time.sleep(0.02)
        assert forks[lost].poll() is None
    forks[lost].kill()
    assert_two_lines(forks[1 - lost].wait(timeout=60), "lost each other", "--resume")


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["specimen", "gemma3"])
def test_two_processes_share_each_layer(model_type: str, run: Run, tmp_path: Path) -> None:
    model = model_type if model_type == "specimen" else str(make_checkpoint(model_type, tmp_path))
    layers = ["layers", model, "--dtype", "float32", "-n", "3"]
    done = torchrun(tmp_path, *NORMPROBE, *layers, "--device", "tp", "-q", "-o", "two")
    assert done.returncode == 0, done.stderr
    assert run(*layers, "--device", "cpu", "-o", "one").exit_code == 0
    two, one = (pd.read_csv(tmp_path / name / "layers.csv") for name in ("two", "one"))
    keys = ["layer", "group", "quantity", "tokens", "samples"]
    assert two[keys].equals(one[keys])
    np.testing.assert_allclose(two["mean"], one["mean"], rtol=1e-5, atol=1e-6)
    records = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("two", "one"))
    assert len({json.dumps(record["weights"], sort_keys=True) for record in records}) == 1


def test_what_cannot_share_its_layers_names_another_device(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    alone = run("layers", "-n", "1", "--device", "tp")
    assert_two_lines(alone, "and there is one", "torchrun --nproc-per-node N -m normprobe")
    interface = run("interface", "--device", "tp")
    assert_two_lines(interface, "--device tp measures layers, without --map", "--device balanced")
    checkpoint = open_checkpoint(str(make_checkpoint("chameleon", tmp_path)))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(NormprobeError, match="has no plan for sharing its layers") as refused:
        load_model(checkpoint, shared=True)
    assert "--device balanced" in refused.value.remedy
