"""``NormProbeCallback`` in the Trainer: numbers, loggers, and that training is untouched."""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.agreement import assert_agrees
from support.cases import make_case
from support.commands import torchrun
from support.expected_parts import PARTS
from support.reference import layers_table
from support.tiny_inputs import SPECIAL_IDS, collate, tiny_inputs, tiny_samples
from support.tiny_models import tiny_model
from transformers import Trainer, TrainingArguments

from normprobe import NormProbeCallback, NormprobeError, Run, align_norms, load_run, schema

pytestmark = pytest.mark.usefixtures("unrendered")

STEPS = 4
TYPES = ("llava", "llava_next", "qwen2_5_vl", "qwen3_vl")


def restless(model: torch.nn.Module) -> torch.nn.Module:
    """Dropout in training, and a layer that draws random numbers of all three kinds in any mode."""
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3

    def draw(*_: object) -> None:
        torch.rand(3), random.random(), np.random.rand()

    model.get_input_embeddings().register_forward_hook(draw)
    return model


def trained(
    model_type: str,
    folder: Path,
    *,
    every: int | None,
    prepare: Callable[[torch.nn.Module], object] = lambda model: None,
    intervals: bool = False,
    resume: Path | None = None,
    **arguments: Any,
) -> tuple[torch.nn.Module, list[dict[str, float]]]:
    """The model after a few steps, and the Trainer's log."""
    model = restless(tiny_model(model_type))
    prepare(model)
    data = [{**sample, "labels": sample["input_ids"].clone()} for sample in tiny_samples(model, 8)]
    options = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 2,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "remove_unused_columns": False,
    }
    trainer = Trainer(
        model,
        TrainingArguments(str(folder / "trainer"), **options | arguments),
        train_dataset=data,
        data_collator=collate,
    )
    if every is not None:
        callback = NormProbeCallback(
            trainer,
            tiny_inputs(model, 3),
            every=every,
            output=folder / "runs",
            special_token_ids=SPECIAL_IDS,
            intervals=intervals,
        )
        trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return model, trainer.state.log_history


def measurements(log: list[dict[str, float]]) -> dict[int, dict[str, float]]:
    """The callback's entries by step, without the prefix."""
    return {
        int(entry["step"]): {
            name.removeprefix("normprobe/"): value
            for name, value in entry.items()
            if name.startswith("normprobe/")
        }
        for entry in log
        if "normprobe/inertia_gap" in entry
    }


@pytest.mark.parametrize("model_type", TYPES)
def test_the_numbers_are_those_of_the_model_at_that_step(model_type: str, tmp_path: Path) -> None:
    model, log = trained(model_type, tmp_path, every=2)
    measured = measurements(log)
    assert list(measured) == [0, 2, 4]
    fresh = tiny_model(model_type)
    for step, checkpoint in ((0, fresh), (4, model.eval())):
        case = make_case(checkpoint, tiny_inputs(fresh, 3), PARTS[model_type], SPECIAL_IDS)
        expected = layers_table(case.observations)
        table = pd.read_csv(tmp_path / f"runs/step-{step:06d}/layers.csv")
        for key, row in expected.items():
            assert_agrees(table.set_index(["layer", "group"]).loc[key], row, where=(step, key))
        depth = max(layer for layer, _ in expected)
        norm = {key: row["norm_geometric_mean"] for key, row in expected.items()}
        angle = {
            group: np.mean([expected[layer, group]["angle_mean"] for layer in range(1, depth + 1)])
            for group in (schema.VISUAL, schema.TEXT)
        }
        middle = (depth + 1) // 2
        wanted = {
            "disparity_input": norm[0, schema.VISUAL] / norm[0, schema.TEXT],
            "disparity_middle": norm[middle, schema.VISUAL] / norm[middle, schema.TEXT],
            "disparity_last": norm[depth, schema.VISUAL] / norm[depth, schema.TEXT],
            "angle_visual": angle[schema.VISUAL],
            "angle_text": angle[schema.TEXT],
            "inertia_gap": angle[schema.TEXT] - angle[schema.VISUAL],
        }
        found = measured[step]
        assert found.pop("seconds") > 0
        assert found == pytest.approx(wanted, rel=1e-4, abs=1e-4)
    assert measured[0] != measured[4]


@pytest.mark.parametrize(
    "argument", [None, "gradient_checkpointing", pytest.param("bf16", marks=pytest.mark.slow)]
)
def test_training_is_the_same_to_the_last_bit(argument: str | None, tmp_path: Path) -> None:
    arguments = {argument: True} if argument else {}
    plain, plain_log = trained("llava_next", tmp_path, every=None, **arguments)
    watched, log = trained("llava_next", tmp_path, every=1, **arguments)
    for (name, one), (_, other) in zip(
        plain.named_parameters(), watched.named_parameters(), strict=True
    ):
        assert torch.equal(one, other), name
    losses = [[entry["loss"] for entry in made if "loss" in entry] for made in (plain_log, log)]
    assert len(losses[0]) == STEPS  # a measurement takes no turn of the Trainer's own log
    assert losses[0] == losses[1]
    assert list(measurements(log)) == list(range(STEPS + 1))
    assert watched.training


def test_a_run_folder_a_step(tmp_path: Path) -> None:
    trained("llava", tmp_path, every=2)
    runs = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert runs == ["step-000000", "step-000002", "step-000004"]
    record = json.loads((tmp_path / "runs/step-000002/run.json").read_text())
    expected = {"command": "layers", "step": 2, "status": "complete", "model_type": "llava"}
    assert record.items() >= expected.items()
    layers = pd.read_csv(tmp_path / "runs/step-000002/layers.csv")
    assert layers["norm_mean_ci_low"].isna().all()  # nobody asked for intervals, or the theory
    assert pd.read_csv(tmp_path / "runs/step-000002/theory.csv").empty
    run = load_run(tmp_path / "runs/step-000002")
    assert "No intervals." in run.verdict
    assert run.page()
    assert pd.read_parquet(tmp_path / "runs/step-000002/samples")["sample_id"].nunique() == 3
    trained("llava", tmp_path, every=4)  # a second training replaces its steps


def test_intervals_and_theory_are_there_where_they_are_asked_for(tmp_path: Path) -> None:
    trained("llava", tmp_path, every=4, intervals=True)
    run = load_run(tmp_path / "runs/step-000004")
    assert run.table["norm_mean_ci_low"].notna().any()
    assert len(run.tables["theory"])
    trained("llava", tmp_path / "plain", every=4)
    plain = load_run(tmp_path / "plain/runs/step-000004")
    measured = [name for name in run.table if not name.endswith(("_low", "_high"))]
    pd.testing.assert_frame_equal(run.table[measured], plain.table[measured])
    assert list(run.table) == list(plain.table)


def test_the_seconds_are_those_of_all_that_a_measurement_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Run.save

    def slow(*args: Any, **kwargs: Any) -> Run:
        time.sleep(1)
        return save(*args, **kwargs)

    monkeypatch.setattr(Run, "save", slow)
    _, log = trained("llava", tmp_path, every=STEPS)
    for step, values in measurements(log).items():
        assert values["seconds"] > 1
        record = json.loads((tmp_path / f"runs/step-{step:06d}/run.json").read_text())
        assert record["seconds"] == pytest.approx(values["seconds"], abs=1e-3)


def test_a_training_that_goes_on_with_other_weights_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a Trainer of transformers 5 resumes LLaVA: no weight is found, nothing is said."""
    trained("llava", tmp_path, every=2, save_strategy="steps", save_steps=2)
    checkpoint, kept = tmp_path / "trainer/checkpoint-2", tmp_path / "runs/step-000002/layers.csv"
    before = pd.read_csv(kept)
    monkeypatch.setattr(Trainer, "_load_from_checkpoint", lambda *_, **__: None)

    def load(model: torch.nn.Module) -> None:
        model.load_state_dict(type(model).from_pretrained(checkpoint).state_dict())

    trained("llava", tmp_path, every=2, resume=checkpoint, prepare=load)
    assert "Did the weights load" not in caplog.text
    resumed = tmp_path / "runs/step-000002-resumed"
    assert not resumed.exists()
    trained("llava", tmp_path, every=2, resume=checkpoint)
    assert "runs/step-000002: the mean norm of " in caplog.text
    assert "Did the weights load, and are the inputs the same?" in caplog.text
    pd.testing.assert_frame_equal(pd.read_csv(kept), before)  # neither overwritten
    assert any("Did the weights load" in text for text in load_run(resumed).record["warnings"])


def test_runs_of_an_aligned_model_say_so(tmp_path: Path) -> None:
    """Figure 5 puts trainings with and without the norm side by side."""
    trained("llava", tmp_path, every=STEPS, prepare=align_norms)
    record = json.loads((tmp_path / f"runs/step-{STEPS:06d}/run.json").read_text())
    assert record["alignment"] == {"after": "model.multi_modal_projector", "compensate": True}
    trained("llava", tmp_path / "plain", every=STEPS)
    plain = json.loads((tmp_path / f"plain/runs/step-{STEPS:06d}/run.json").read_text())
    assert "alignment" not in plain


def test_tensorboard_gets_the_numbers(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = tmp_path / "events"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORBOARD_LOGGING_DIR", str(folder))
        _, log = trained("llava", tmp_path, every=2, report_to="tensorboard")
    events = reading.EventAccumulator(str(folder)).Reload()
    for name in ("disparity_input", "inertia_gap"):
        scalars = events.Scalars(f"train/normprobe/{name}")
        written = {scalar.step: scalar.value for scalar in scalars}
        wanted = {step: values[name] for step, values in measurements(log).items()}
        assert written == pytest.approx(wanted)


def test_an_impossible_interval_is_an_error() -> None:
    with pytest.raises(NormprobeError, match="every=0"):
        NormProbeCallback(None, {}, every=0)  # type: ignore[arg-type]


#: A loop of training a model that FSDP2 shards, with and without the callback, in each process.
SHARDED = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
import torch
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import tiny_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from normprobe import NormProbeCallback, Probe

torch.distributed.init_process_group("gloo")
rank, mesh, ends = torch.distributed.get_rank(), init_device_mesh("cpu", (2,)), []
for watched in (False, True):
    model, plain = tiny_model("llava_next"), tiny_model("llava_next")
    inputs = tiny_inputs(model, 3)
    for module in (*model.get_decoder().layers, model):
        fully_shard(module, mesh=mesh, reshard_after_forward=True)  # as accelerate does
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    handler = SimpleNamespace(callbacks=[])
    trainer = SimpleNamespace(model=model, log=print, callback_handler=handler)
    to = {"every": 1, "output": Path("runs"), "special_token_ids": SPECIAL_IDS}
    callback = NormProbeCallback(trainer, inputs, **to)
    for step in range(2):
        if watched:
            state = SimpleNamespace(global_step=step, epoch=0, is_world_process_zero=rank == 0)
            callback._measure(state, SimpleNamespace(should_log=False))
            whole = {n: w.full_tensor() for n, w in model.state_dict().items()}
            plain.load_state_dict(whole)
            Probe(plain, special_token_ids=SPECIAL_IDS).layers(inputs).save(f"plain-{rank}/{step}")
        model(**inputs, labels=inputs["input_ids"]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    ends.append([weight.full_tensor() for weight in model.state_dict().values()])
assert all(map(torch.equal, *ends))
torch.distributed.barrier()
print("done", flush=True)
os._exit(0)  # gloo may abort while it is taken down
"""


@pytest.mark.slow
def test_a_model_that_fsdp2_shards_is_measured_and_trains_as_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sharded.py").write_text(SHARDED)
    tests = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", f"{tests}:{tests.parent}")
    done = torchrun(tmp_path, "sharded.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 2
    for step in (0, 1):
        sharded = load_run(tmp_path / f"runs/step-{step:06d}")
        plain = load_run(tmp_path / f"plain-0/{step}")
        assert sharded.record["norm_placement"] == plain.record["norm_placement"]
        measured = [name for name in plain.table if not name.endswith(("_low", "_high"))]
        pd.testing.assert_frame_equal(sharded.table[measured], plain.table[measured])


@pytest.mark.slow
def test_two_processes_train_as_without_it_and_one_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under DistributedDataParallel, started as a user does."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; from pathlib import Path; import torch; from test_callback import trained\n"
        "every = None if sys.argv[1] == 'plain' else 2\n"
        "model, log = trained('llava', Path(sys.argv[1]), every=every, ddp_backend='gloo')\n"
        "rank = torch.distributed.get_rank()\n"
        "torch.save((model.state_dict(), log), f'{sys.argv[1]}-{rank}.pt')\n"
    )
    tests = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", f"{tests}:{tests.parent}")
    for name in ("plain", "watched"):
        done = torchrun(tmp_path, str(script), name)
        assert done.returncode == 0, done.stderr
    plain, _ = torch.load(tmp_path / "plain-0.pt")
    for rank in (0, 1):
        watched, log = torch.load(tmp_path / f"watched-{rank}.pt")
        assert all(torch.equal(plain[name], watched[name]) for name in plain)
        assert list(measurements(log)) == [0, 2, 4]
    assert len(list((tmp_path / "watched/runs").iterdir())) == 3
