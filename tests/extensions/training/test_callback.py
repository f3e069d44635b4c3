"""``NormProbeCallback`` in the Trainer and in launchers; Lightning and axolotl."""

import json
import sys
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.commands import invoke, torchrun
from support.flat import flat
from support.hooks import hooks_of
from support.tiny_inputs import SPECIAL_IDS, collate, tiny_inputs, tiny_samples
from support.tiny_models import tiny_model
from torch import nn
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import normprobe
from normprobe import (
    NormProbeCallback,
    NormprobeError,
    align_norms,
    find_parts,
    load_run,
    probe_layers,
)
from normprobe.specimen import SPECIMEN_DIR
from normprobe.tidy import select

pytestmark = pytest.mark.usefixtures("unrendered")

STEPS = 4
_SHIPPED = files("normprobe.extensions.training") / "snippets.toml"
SNIPPETS = tomllib.loads(_SHIPPED.read_text("utf-8"))


def samples_of(model: nn.Module, count: int = 8) -> list[dict[str, Any]]:
    return [{**one, "labels": one["input_ids"].clone()} for one in tiny_samples(model, count)]


def trained(
    folder: Path,
    *callbacks: Any,
    model: nn.Module | None = None,
    kind: type[Trainer] = Trainer,
    resume: Path | None = None,
    **arguments: Any,
) -> Trainer:
    """A training of a few steps."""
    torch.manual_seed(0)
    model = model or tiny_model("llava_next")
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
    made = TrainingArguments(str(folder / "trainer"), **options | arguments)
    data = {"train_dataset": samples_of(model), "eval_dataset": samples_of(model, 2)}
    trainer = kind(model, made, **data, data_collator=collate, callbacks=list(callbacks))
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return trainer


def watched_steps(trainer: Trainer) -> dict[int, dict[str, float]]:
    logs = trainer.state.log_history
    return {entry["step"]: entry for entry in logs if "normprobe/gradient/projector" in entry}


class ByLauncher(Trainer):
    """Builds its callback as launchers do: with its arguments and itself."""

    form = "args, trainer"

    def __init__(self, model: Any, args: Any, *, callbacks: Any, **more: Any) -> None:
        super().__init__(model, args, **more)
        options = {"every": 2, "output": None}
        given = {
            "args, trainer": (args, self),
            "trainer": (self,),
            "trainer, inputs": (self, tiny_inputs(model, 3)),
        }[self.form]
        self.add_callback(NormProbeCallback(*given, **options))


@pytest.mark.parametrize(
    "form", ["nothing", "args, trainer", "trainer", "trainer, inputs", "inputs"]
)
def test_every_form_watches_the_training(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ByLauncher, "form", form)
    if form in ("nothing", "inputs"):
        given = {} if form == "nothing" else {"inputs": tiny_inputs(tiny_model("llava_next"), 3)}
        trainer = trained(tmp_path, NormProbeCallback(every=2, output=None, **given))
    else:
        trainer = trained(tmp_path, kind=ByLauncher)
    assert list(watched_steps(trainer)) == [0, 2]
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == STEPS  # a measurement takes no turn of the Trainer's own log


def test_inputs_of_your_own_are_measured_on_each_due_step_and_at_the_end(tmp_path: Path) -> None:
    model = tiny_model("llava_next")
    inputs = tiny_inputs(model, 3)
    before = probe_layers(model, inputs, special_token_ids=SPECIAL_IDS)
    run = NormProbeCallback(
        inputs=inputs, every=2, output=tmp_path / "run", special_token_ids=SPECIAL_IDS
    )
    trained(tmp_path, run, model=model)
    after = probe_layers(model.eval(), inputs, special_token_ids=SPECIAL_IDS)
    table = load_run(tmp_path / "run").table
    assert list(table["training_step"].unique()) == [0, 2, 4]
    for step, expected in ((0, before), (4, after)):
        found = flat(table[table["training_step"] == step]).set_index(["layer", "group"])
        wanted = flat(expected).set_index(["layer", "group"])["angle_mean"].reindex(found.index)
        np.testing.assert_allclose(found["angle_mean"], wanted, rtol=1e-6)


@pytest.mark.parametrize("way", [{}, {"gradient_checkpointing": True}, {"bf16": True}, {"eval": 1}])
def test_training_is_the_same_to_the_last_bit(way: dict[str, Any], tmp_path: Path) -> None:
    if way.pop("eval", None):
        way |= {"eval_strategy": "steps", "eval_steps": 1, "gradient_accumulation_steps": 2}
    plain = trained(tmp_path, **way)
    watched = trained(tmp_path, NormProbeCallback(every=1, output=None), **way)
    weights = (trainer.model.parameters() for trainer in (plain, watched))
    assert all(map(torch.equal, *weights))
    assert list(watched_steps(watched)) == list(range(STEPS))


def test_the_loggers_of_the_trainer_get_the_numbers_under_names_that_stay(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = tmp_path / "events"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORBOARD_LOGGING_DIR", str(folder))
        callback = NormProbeCallback(every=2, output=tmp_path / "run")
        trained(tmp_path, callback, report_to="tensorboard")
    events = reading.EventAccumulator(str(folder)).Reload()
    table = load_run(tmp_path / "run").table
    last = int(table["layer"].max())  # of the dozen that are logged
    for group in ("visual", "text"):
        scalars = events.Scalars(f"train/normprobe/layers/{group}/norm/{last}")
        expected = select(table, "norm", group=group, layer=last)["mean"]
        assert [scalar.value for scalar in scalars] == pytest.approx(list(expected))


def test_an_alarm_ends_the_training_where_it_is_asked_to(tmp_path: Path) -> None:
    model = tiny_model("llava")
    find_parts(model).projector.module.register_forward_hook(lambda _, args, out: out.detach())
    stopping = NormProbeCallback(every=1, output=tmp_path / "run", on_alarm="stop")
    trainer = trained(tmp_path, stopping, model=model)
    assert trainer.state.global_step == 1
    run = load_run(tmp_path / "run")
    assert "at step 0: the projector is to be trained and receives no gradient" in str(run.verdict)
    assert set(run.tables["alarms"]["alarm"]) == {"gradient"}
    assert any("normprobe/alarm/gradient" in entry for entry in trainer.state.log_history)


def test_a_resumed_training_goes_on_with_its_steps(tmp_path: Path) -> None:
    output, saves = tmp_path / "run", {"save_strategy": "steps", "save_steps": 2}
    trained(tmp_path, NormProbeCallback(every=1, output=output), **saves)
    before = load_run(output).table

    def load(trainer: Any, *_: Any, **__: Any) -> None:
        state = type(trainer.model).from_pretrained(checkpoint).state_dict()
        trainer.model.load_state_dict(state)

    checkpoint = tmp_path / "trainer/checkpoint-2"
    with pytest.MonkeyPatch.context() as patch:  # transformers 5.23 loads no weight of LLaVA
        patch.setattr(Trainer, "_load_from_checkpoint", load)
        trained(tmp_path, NormProbeCallback(every=1, output=output), resume=checkpoint, **saves)
    run = load_run(output)
    assert not any("Did the weights load" in text for text in run.record["warnings"])
    assert list(run.table["training_step"].unique()) == [0, 1, 2, 3]
    norms = (select(table, "norm")["mean"] for table in (run.table, before))
    np.testing.assert_allclose(*norms, rtol=1e-5)


def test_a_run_of_an_aligned_model_says_so_and_has_its_norm(tmp_path: Path) -> None:
    model = tiny_model("llava")
    align_norms(model)
    trained(tmp_path, NormProbeCallback(every=2, output=tmp_path / "run"), model=model)
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert record["alignment"] == {"after": "model.multi_modal_projector", "compensate": True}
    gradients = load_run(tmp_path / "run").tables["gradients"]
    assert "alignment_norm" in set(gradients["part"])


# --- launchers -----------------------------------------------------------------------------------


def test_snippets_are_printed_and_parse() -> None:
    for name, lines in SNIPPETS.items():
        done = invoke("watch", "--snippet", name)
        assert done.stdout.strip() == lines.strip()
        if name != "axolotl":
            compile(lines, name, "exec")


def test_ms_swift_finds_it_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its map of callbacks, whose entries it calls with arguments and trainer."""
    swift = ModuleType("swift.callbacks")
    swift.callbacks_map = {}
    monkeypatch.setitem(sys.modules, "swift", ModuleType("swift"))
    monkeypatch.setitem(sys.modules, "swift.callbacks", swift)
    exec(SNIPPETS["swift"], {})
    made = swift.callbacks_map["normprobe"](SimpleNamespace(), None)
    assert isinstance(made, TrainerCallback)


def test_llamafactory_gets_it_as_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    tuner, given = ModuleType("llamafactory.train.tuner"), []
    tuner.run_exp = lambda args=None, callbacks=None: given.extend(callbacks)
    for name in ("llamafactory", "llamafactory.train"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "llamafactory.train.tuner", tuner)
    exec(SNIPPETS["llamafactory"], {})
    assert [type(callback) for callback in given] == [NormProbeCallback]


def test_axolotl_loads_the_plugin_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its plugin manager does: a class by its dotted name, called without anything."""
    base = ModuleType("axolotl.integrations.base")
    base.BasePlugin = type("BasePlugin", (), {"register": lambda self, cfg: None})
    for name in ("axolotl", "axolotl.integrations"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "axolotl.integrations.base", base)
    monkeypatch.delitem(sys.modules, "normprobe.extensions.training.launchers", raising=False)
    assert "normprobe.AxolotlPlugin" in SNIPPETS["axolotl"]
    plugin = normprobe.AxolotlPlugin()
    assert isinstance(plugin, base.BasePlugin)
    (callback,) = plugin.add_callbacks_pre_trainer({}, None)
    assert isinstance(callback, NormProbeCallback)
    monkeypatch.delitem(sys.modules, "normprobe.extensions.training.launchers", raising=False)


@pytest.mark.parametrize(
    ("name", "package"), [("AxolotlPlugin", "axolotl"), ("LightningCallback", "lightning")]
)
def test_a_launcher_that_is_not_installed_is_named(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "normprobe.extensions.training.launchers", raising=False)
    if find_spec(package):
        pytest.skip(f"{package} is installed")
    with pytest.raises(NormprobeError, match=f"{name} needs {package}") as raised:
        getattr(normprobe, name)()
    assert raised.value.remedy == f"pip install {package}"


def test_lightning_goes_on_at_its_own_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its trainer calls a callback in a training that was resumed."""
    lightning, logged = ModuleType("lightning.pytorch"), list[int]()
    lightning.Callback = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, "lightning.pytorch", lightning)
    monkeypatch.setitem(sys.modules, "normprobe.extensions.training.launchers", None)
    del sys.modules[
        "normprobe.extensions.training.launchers"
    ]  # imported anew here, and as it was in other tests
    logger = SimpleNamespace(log_metrics=lambda values, step: logged.append(step))
    trainer = SimpleNamespace(global_step=7, loggers=[logger], should_stop=False)
    model = tiny_model("llava").train()
    callback = normprobe.LightningCallback(every=7, output=None)
    callback.on_train_start(trainer, nn.ModuleDict({"model": model}))
    model(**tiny_inputs(model, 2))
    callback.on_train_batch_end(trainer)
    callback.on_train_end(trainer, None)
    assert logged == [7]
    assert set(callback.watch.run().table["training_step"]) == {7}
    assert not trainer.should_stop


def fitted_by_lightning(*callbacks: Any, blank: bool = False) -> Any:
    """A training of 20 steps; its Trainer."""
    lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.model = tiny_model("llava_next").train()

        def training_step(self, batch: Mapping[str, Any], _: int) -> Any:
            return self.model(**batch).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    module = Module()
    data = [collate(samples_of(module.model)[i : i + 2]) for i in (0, 2, 4, 6)] * 5
    for each in data if blank else ():
        each["pixel_values"].zero_()
    trainer = lightning.Trainer(
        max_steps=20, max_epochs=2, callbacks=[*callbacks], accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=None))
    return trainer


@pytest.mark.slow
def test_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    callback = normprobe.LightningCallback(every=2, output=tmp_path / "run")
    ends = [[*fitted_by_lightning(*those).model.parameters()] for those in ([], [callback])]
    assert all(map(torch.equal, *ends))
    run = load_run(tmp_path / "run")
    assert list(run.table["training_step"].unique()) == list(range(0, 20, 2))
    assert select(run.tables["gradients"], "gradient_norm")["mean"].gt(0).all()
    assert "No alarm." in str(run.verdict)


@pytest.mark.slow
def test_an_alarm_ends_a_training_of_lightning_where_it_is_asked_to(tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    callback = normprobe.LightningCallback(every=2, output=tmp_path / "run", on_alarm="stop")
    assert fitted_by_lightning(callback, blank=True).global_step < 20
    assert "all pictures are blank" in str(load_run(tmp_path / "run").verdict)


@pytest.mark.slow
def test_trl(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    from datasets import Dataset

    turns = [
        {"role": "user", "content": "What is drawn?"},
        {"role": "assistant", "content": "a circle"},
    ]
    noise = np.random.default_rng(0).integers(0, 255, (8, 64, 64, 3), dtype=np.uint8)
    rows = [{"images": [Image.fromarray(picture)], "messages": turns} for picture in noise]
    ends = []
    for callbacks in ([], [NormProbeCallback(every=2, output=tmp_path / "run")]):
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_pretrained(SPECIMEN_DIR, dtype=torch.float32)
        args = trl.SFTConfig(
            str(tmp_path / "out"), max_steps=20, per_device_train_batch_size=2, report_to="none",
            save_strategy="no", use_cpu=True, disable_tqdm=True, logging_steps=1, bf16=False,
        )  # fmt: skip
        trainer = trl.SFTTrainer(
            model, args, train_dataset=Dataset.from_list(rows), callbacks=callbacks,
            processing_class=AutoProcessor.from_pretrained(SPECIMEN_DIR),
        )  # fmt: skip
        trainer.train()
        ends.append([weight.detach().clone() for weight in model.parameters()])
    assert all(map(torch.equal, *ends))
    assert list(watched_steps(trainer)) == list(range(0, 20, 2))
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logs) == 20 and all("mean_token_accuracy" in entry for entry in logs)
    run = load_run(tmp_path / "run")
    assert {"visual", "text", "special"} <= set(run.table["group"])
    assert "No alarm." in str(run.verdict)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp2", "zero1", "zero2", "zero3"])
def test_two_processes_train_as_without_it_and_one_writes(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way.startswith("zero") and not find_spec("deepspeed"):
        pytest.skip("DeepSpeed is not installed")
    (tmp_path / "script.py").write_text(PROCESSES)
    tests = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{tests}:{tests.parent}")
    done = torchrun(tmp_path, "script.py", way)
    if way == "zero3":
        assert "ZeRO stage 3 keeps the weights of" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 2
    run = load_run(tmp_path / "run")
    assert list(run.table["training_step"].unique()) == [0, 2, 4]
    expected = json.loads((tmp_path / "expected.json").read_text())
    gradients = select(run.tables["gradients"], "gradient_norm")
    gradients = gradients.set_index(["training_step", "part"])["mean"]
    assert gradients[0, "projector"] == pytest.approx(expected["gradient"], rel=1e-4)
    found = select(run.table, "norm").set_index(["training_step", "layer", "group"])["mean"]
    assert found[0, 2, "text"] == pytest.approx(expected["norm"], rel=1e-5)


#: Two processes train, with and without a watch: under DDP, sharded by FSDP2, or by ZeRO.
PROCESSES = """
import json, os, sys
import torch
from support.torchvision_operators import define

define()
from support.tiny_inputs import tiny_inputs
from support.tiny_models import tiny_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import normprobe
from normprobe.tidy import select

way = sys.argv[1]
if way.startswith("zero"):
    import deepspeed

    deepspeed.init_distributed("gloo")
    settings = {
        "train_micro_batch_size_per_gpu": 3,
        "zero_optimization": {"stage": int(way[-1])},
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
    }
else:
    torch.distributed.init_process_group("gloo")
rank, mesh, ends = torch.distributed.get_rank(), init_device_mesh("cpu", (2,)), []
plain, mean = tiny_model("llava").train(), {}
for each in (0, 1):  # the gradient that both see, and the states of the first process
    inputs = tiny_inputs(plain, 3, seed=each)
    if each == 0:
        table = normprobe.probe_layers(plain, inputs, special_token_ids=[])
        norms = select(table, "norm", layer=2, group="text")
    (plain(**inputs, labels=inputs["input_ids"]).loss / 2).backward()
projector = normprobe.find_parts(plain).projector.module
gradient = sum(float(w.grad.double().square().sum()) for w in projector.parameters()) ** 0.5
expected = {"gradient": gradient, "norm": float(norms["mean"].iloc[0])}
for watched in (False, True):
    model = tiny_model("llava").train()
    trains = model
    if way == "fsdp2":
        for module in (*model.get_decoder().layers, model):
            fully_shard(module, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if way == "ddp":
        trains = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    elif way.startswith("zero"):
        trains, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    seen = normprobe.watch(trains, 2, output="run") if watched else None
    for step in range(6):
        inputs = tiny_inputs(plain, 3, seed=2 * step + rank)
        loss = trains(**inputs, labels=inputs["input_ids"]).loss
        if trains is not model and way != "ddp":
            trains.backward(loss)
            trains.step()
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if seen is not None:
        seen.close()
    weights = [getattr(w, "full_tensor", lambda w=w: w)() for w in model.parameters()]
    ends.append([weight.detach().clone() for weight in weights])
assert all(map(torch.equal, *ends))
if rank == 0:
    open("expected.json", "w").write(json.dumps(expected))
torch.distributed.barrier()
print("done", flush=True)
os._exit(0)  # gloo may abort while it is taken down
"""


def test_a_second_training_closes_the_first_watch() -> None:
    model, nothing, watched = tiny_model("llava"), SimpleNamespace(), []
    before = len(hooks_of(model))
    callback = NormProbeCallback(output=None)
    callback._trainer = nothing
    for _ in range(2):
        callback.on_train_begin(nothing, nothing, nothing, model=model)
        watched.append(len(hooks_of(model)))
    assert watched[0] == watched[1] > before
    callback.watch.close()
    assert len(hooks_of(model)) == before
