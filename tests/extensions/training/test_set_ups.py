"""Set-ups x precisions x what people add: weights with and without a watch, and its numbers.

What its library refuses, or has no such thing, is no cell: closures are the plain loop's (those of
Lightning are in all of its cells, those of the Trainer nowhere), GradScaler takes neither a closure
nor steps in the backward, and the Trainer and TRL compute in float16 on a GPU alone. Compiled, two
precisions of a plain loop and one of the others stand for all: to compile takes half a minute.
"""

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from support.tiny_inputs import collate, tiny_samples
from support.tiny_models import tiny_model
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText, AutoProcessor, Trainer, TrainingArguments

import normprobe
from normprobe import NormProbeCallback, Watch, watch
from normprobe.runs.run_folder import RunFolder
from normprobe.specimen import SPECIMEN_DIR
from normprobe.tidy import select

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unrendered")]

STEPS = 3
PRECISIONS = {
    **{"fp32": torch.float32, "bf16": torch.bfloat16},
    **{"bf16-mixed": torch.float32, "16-mixed": torch.float32},
}
ADDED = ("nothing", "accumulation", "closure", "in backward", "checkpointing", "compile")


class Training(NamedTuple):
    """What a cell asks for."""

    precision: str
    added: str
    watched: bool
    folder: Path
    options: Mapping[str, Any] = MappingProxyType({"output": None})  # of the watch

    @property
    def accumulate(self) -> int:
        return 2 if self.added == "accumulation" else 1


class FirstForward:
    """Own hooks: the mean norm of visual tokens behind the last decoder layer, in float64."""

    def __init__(self, model: nn.Module) -> None:
        self.norm = float("nan")
        self._ids: list[Tensor] = []
        model.register_forward_pre_hook(self._enter, with_kwargs=True)
        normprobe.find_parts(model).decoder_layers.module[-1].register_forward_hook(self._leave)
        self._image = model.config.image_token_id

    def _enter(self, _: nn.Module, given: Any, named: Mapping[str, Any]) -> None:
        self._ids.append(named["input_ids"])

    def _leave(self, _: nn.Module, given: Any, output: Any) -> None:
        if np.isnan(self.norm):
            state = output[0] if isinstance(output, tuple) else output
            rows = state.detach()[self._ids[0] == self._image].double().numpy()
            self.norm = float(np.linalg.norm(rows, axis=-1).mean())


def prepared(model: Any, of: Training) -> Any:
    model = model.to(PRECISIONS[of.precision]).train()
    if of.added == "checkpointing":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.begun = [weight.detach().clone() for weight in model.parameters()]
    return model


def batches(model: nn.Module) -> list[dict[str, Any]]:
    samples = [one | {"labels": one["input_ids"].clone()} for one in tiny_samples(model, 8)]
    made = [collate(samples[i : i + 2]) for i in (0, 2, 4, 6)]
    for each in made:
        each["pixel_values"] = each["pixel_values"].to(next(model.parameters()).dtype)
    return made


def steps_in_backward(model: nn.Module) -> None:
    """An optimizer a weight, which steps when its gradient is there."""
    made = {weight: torch.optim.SGD([weight], lr=1e-2) for weight in model.parameters()}

    def step(weight: Tensor) -> None:
        made[weight].step()
        made[weight].zero_grad()

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(step)


# --- set-ups: each trains a model, and returns it, the watch and own hooks ------------------------

Ended = tuple[Any, Watch | None, FirstForward | None]


def by_hand(of: Training) -> Ended:
    model = prepared(tiny_model("llava"), of)
    own = None if of.watched or of.added == "compile" else FirstForward(model)
    runs = torch.compile(model, backend="aot_eager") if of.added == "compile" else model
    seen = watch(runs, 1, **of.options) if of.watched else None
    dtype = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(of.precision)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=of.precision == "16-mixed")
    data = batches(model)
    if of.added == "in backward":
        steps_in_backward(model)
        optimizer: Any = None
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def backward(number: int) -> Any:
        with torch.autocast("cpu", dtype) if dtype else nullcontext():
            loss = runs(**data[number % len(data)]).loss
        scaler.scale(loss).backward()
        return loss

    def closure(number: int) -> Callable[[], Any]:
        def again() -> Any:
            optimizer.zero_grad()
            return backward(number)

        return again

    for step in range(STEPS):
        if of.added == "closure":
            optimizer.step(closure(step))
            continue
        for part in range(of.accumulate):
            backward(of.accumulate * step + part)
        if optimizer is not None:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    if seen is not None:
        seen.close()
    return model, seen, own


def arguments(of: Training) -> dict[str, Any]:
    """Of the Trainer, as TRL takes them, too."""
    compiles = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
    return {
        **{"max_steps": STEPS, "per_device_train_batch_size": 2, "report_to": "none"},
        **{"save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "learning_rate": 1e-3},
        "gradient_accumulation_steps": of.accumulate,
        "bf16": of.precision == "bf16-mixed",
        "gradient_checkpointing": of.added == "checkpointing",
        **(compiles if of.added == "compile" else {}),
    }


def optimizers(model: nn.Module, of: Training) -> dict[str, Any]:
    """As the Trainer has them where optimizers step in the backward: its own do nothing."""
    if of.added != "in backward":
        return {}
    from transformers.trainer_pt_utils import LayerWiseDummyOptimizer

    steps_in_backward(model)
    idle = LayerWiseDummyOptimizer()
    return {"optimizers": (idle, torch.optim.lr_scheduler.LambdaLR(idle, lambda step: 1.0))}


def fitted(trainer: Trainer, of: Training) -> Ended:
    callback = NormProbeCallback(every=1, **of.options)
    own = None if of.watched or of.added == "compile" else FirstForward(trainer.model)
    if of.watched:
        trainer.add_callback(callback)
    trainer.train()
    return trainer.model, callback.watch if of.watched else None, own


def by_trainer(of: Training) -> Ended:
    model = prepared(tiny_model("llava"), of)
    args = TrainingArguments(str(of.folder), remove_unused_columns=False, **arguments(of))
    data = [one | {"labels": one["input_ids"].clone()} for one in tiny_samples(model, 8)]

    def joined(samples: Any) -> Any:
        made = collate(samples)
        return made | {"pixel_values": made["pixel_values"].to(model.dtype)}

    more = optimizers(model, of)
    return fitted(Trainer(model, args, train_dataset=data, data_collator=joined, **more), of)


def by_trl(of: Training) -> Ended:
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    from datasets import Dataset

    model = AutoModelForImageTextToText.from_pretrained(SPECIMEN_DIR, dtype=torch.float32)
    model = prepared(model, of)
    turns = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "a circle"}]
    noise = np.random.default_rng(0).integers(0, 255, (8, 64, 64, 3), dtype=np.uint8)
    rows = [{"images": [Image.fromarray(picture)], "messages": turns} for picture in noise]
    args = trl.SFTConfig(str(of.folder), **arguments(of))
    reader = AutoProcessor.from_pretrained(SPECIMEN_DIR)
    data = {"train_dataset": Dataset.from_list(rows), "processing_class": reader}
    return fitted(trl.SFTTrainer(model, args, **data, **optimizers(model, of)), of)


def by_lightning(of: Training) -> Ended:
    lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from lightning.pytorch.plugins.precision import MixedPrecision

    in_backward = of.added == "in backward"

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = prepared(tiny_model("llava"), of)
            compiled = of.added == "compile"
            # beside the model, whose weights stand there once
            self.runs = [torch.compile(self.model, backend="aot_eager") if compiled else self.model]
            self.automatic_optimization = not in_backward

        def training_step(self, batch: Mapping[str, Any], _: int) -> Any:
            loss = self.runs[0](**batch).loss
            if in_backward:
                self.manual_backward(loss)
                self.optimizers().step()  # a step of the training, which moves nothing
            return loss

        def configure_optimizers(self) -> Any:
            if in_backward:
                steps_in_backward(self.model)
                return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1e-2)
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    torch.manual_seed(0)
    module = Module()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    how: dict[str, Any] = {
        "fp32": {"precision": "32-true"},
        "bf16": {},  # its weights are; bf16-true would cast them again
        "bf16-mixed": {"precision": "bf16-mixed"},
        "16-mixed": {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]},
    }[of.precision]
    own = None if of.watched or of.added == "compile" else FirstForward(module.model)
    callback = normprobe.LightningCallback(every=1, **of.options)
    trainer = lightning.Trainer(
        max_steps=STEPS, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, max_epochs=-1,
        accumulate_grad_batches=of.accumulate, callbacks=[callback] * of.watched, **how,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(batches(module.model), batch_size=None))
    return module.model, callback.watch if of.watched else None, own


SET_UPS: dict[str, Callable[[Training], Ended]] = {
    "plain": by_hand,
    "trainer": by_trainer,
    "trl": by_trl,
    "lightning": by_lightning,
}


def cells() -> Iterator[Any]:
    for set_up, precision, added in product(SET_UPS, PRECISIONS, ADDED):
        scaled = precision == "16-mixed"
        lacking = added == "closure" and (set_up != "plain" or scaled)
        few = ("fp32", "bf16-mixed") if set_up == "plain" else ("bf16-mixed",)
        lacking = lacking or (added == "compile" and precision not in few)
        lacking = lacking or (scaled and (added == "in backward" or set_up in ("trainer", "trl")))
        if not lacking:
            yield pytest.param(set_up, precision, added, id=f"{set_up}, {precision}, {added}")


@pytest.mark.parametrize(("set_up", "precision", "added"), cells())
def test_a_watch_changes_no_weight_and_reads_what_own_hooks_read(
    set_up: str, precision: str, added: str, tmp_path: Path
) -> None:
    ends: list[list[Tensor]] = []
    own: FirstForward | None = None
    seen: Watch | None = None
    for watched in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        of = Training(precision, added, watched, tmp_path)
        model, seen, hooks = SET_UPS[set_up](of)
        own = own or hooks
        ends.append([weight.detach().clone() for weight in model.parameters()])
    # Other graphs may add in another order: 2e-8 of a weight apart with TRL.
    near = partial(torch.allclose, rtol=0, atol=1e-6)
    same = near if added == "compile" and "mixed" in precision else torch.equal
    assert all(map(same, *ends))
    assert not all(map(torch.equal, model.begun, ends[0]))  # it trained
    assert seen is not None and not seen.gave_up
    run = seen.run()
    assert set(run.table["training_step"]) == set(range(STEPS))
    gradients = select(run.tables["gradients"], "gradient_norm", part="projector")["mean"]
    assert len(gradients) == STEPS and gradients.gt(0).all()
    if own is not None:
        last = run.table["layer"].max()
        table = select(run.table, "norm", layer=last, group="visual", training_step=0)
        assert table["mean"].item() == pytest.approx(own.norm, rel=1e-5)


def unreachable(values: Mapping[str, float], *_: Any) -> None:
    raise ConnectionError("no route to the tracker")


def no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("fails", ["disk", "network"])
@pytest.mark.parametrize("set_up", SET_UPS)
def test_what_fails_beside_a_training_leaves_it_as_it_is(
    set_up: str,
    fails: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("normprobe.extensions.training.watch._WRITTEN_EVERY", 0.0)
    options = {"output": tmp_path / "run"} if fails == "disk" else {"log": unreachable}
    ends = []
    for watched in (False, True):
        torch.manual_seed(0)
        if watched and fails == "disk":
            monkeypatch.setattr(RunFolder, "append", no_space)
        of = Training("fp32", "nothing", watched, tmp_path, {"output": None} | options)
        model, seen, _ = SET_UPS[set_up](of)
        ends.append([weight.detach().clone() for weight in model.parameters()])
    assert all(map(torch.equal, *ends))
    assert seen is not None
    told = "nothing is measured any more" if fails == "disk" else "the logger failed"
    assert caplog.text.count(told) == 1
    assert seen.gave_up == (fails == "disk")
