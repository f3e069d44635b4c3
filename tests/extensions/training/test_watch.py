"""``watch``: numbers against other ways, a training untouched to the last bit, no trace left."""

import errno
import gc
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.cases import make_case
from support.expected_parts import PARTS
from support.flat import flat
from support.reference import layers_table
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs, tiny_media, tiny_samples
from support.tiny_models import IMAGE, VIDEO, tiny_model
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import normprobe
from normprobe import NormprobeError, Watch, align_norms, find_parts, load_run, probe_layers, watch
from normprobe.data.data_set import open_data
from normprobe.extensions.training.measure import ForwardReader, _sampled
from normprobe.model.load.required_tensors import everything
from normprobe.model.measured_model import MeasuredModel
from normprobe.runs.run_folder import RunFolder
from normprobe.tidy import select

pytestmark = pytest.mark.usefixtures("unrendered")

TYPES = ("llava", "llava_next", "qwen2_5_vl", "qwen3_vl")
COLUMNS = ("norm_mean", "norm_geometric_mean", "angle_mean", "relative_update_mean")


@pytest.fixture
def specimen_inputs() -> tuple[nn.Module, dict[str, Any]]:
    """The specimen in float32, and a batch of one sample with labels."""
    probe = normprobe.Probe("specimen", dtype="float32")
    model = probe.source.measured([everything]).model
    (sample,) = open_data("sample", limit=1)
    inputs = dict(probe.source.builder.build([sample]))
    return model, inputs | {"labels": inputs["input_ids"].clone()}


def batch(model: nn.Module, seed: int, size: int = 3) -> dict[str, Any]:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    inputs = dict(tiny_inputs(base, size, seed=seed))
    return inputs | {"labels": inputs["input_ids"].clone()}


def train(
    model: nn.Module,
    steps: int = 4,
    *,
    before: Callable[[int], object] = lambda step: None,
    call: Callable[[Mapping[str, Any]], Any] | None = None,
    accumulate: int = 1,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """A bare loop, with an evaluation in between."""
    made = optimizer or torch.optim.AdamW(
        [weight for weight in model.parameters() if weight.requires_grad], lr=1e-3
    )
    for step in range(steps):
        before(step)
        for part in range(accumulate):
            inputs = batch(model, 10 * step + part)
            (model(**inputs) if call is None else call(inputs)).loss.backward()
        made.step()
        made.zero_grad()
        model.eval()
        with torch.no_grad():
            model(**batch(model, 99))
        model.train()


def plain(watched: Watch) -> pd.DataFrame:
    """training.csv, a column a number."""
    return flat(watched.run().table).set_index(["training_step", "layer", "group"])


@pytest.mark.parametrize("model_type", TYPES)
def test_the_numbers_are_those_of_probe_layers_and_of_float64(model_type: str) -> None:
    model, expected, oracle = tiny_model(model_type).train(), {}, {}

    def look(step: int) -> None:
        inputs = batch(model, 10 * step)
        probed = probe_layers(model, inputs, special_token_ids=SPECIAL_IDS)
        expected[step] = flat(probed).set_index(["layer", "group"])
        inputs.pop("labels")
        case = make_case(model.eval(), inputs, PARTS[model_type], SPECIAL_IDS)
        oracle[step] = layers_table(case.observations)
        model.train()

    with watch(model, 2, output=None, special_token_ids=SPECIAL_IDS) as seen:
        train(model, before=look)
    found = plain(seen)
    assert list(found.index.unique("training_step")) == [0, 2]
    for step in (0, 2):
        table = found.loc[step]
        assert set(table.index) == set(expected[step].index) - {
            key for key in expected[step].index if key[1] == "non_visual"
        }
        for column in (*COLUMNS, "norm_geometric_ratio_to_text", "tokens", "nonfinite"):
            wanted = expected[step][column].reindex(table.index)
            np.testing.assert_allclose(table[column], wanted, rtol=1e-6, err_msg=column)
        for key, row in table.iterrows():
            for column in COLUMNS:
                if column in oracle[step][key]:
                    assert row[column] == pytest.approx(oracle[step][key][column], rel=1e-4)


def test_videos_are_visual_too() -> None:
    model = tiny_model("qwen2_5_vl").train()
    inputs = tiny_media(model, 2)
    with watch(model, output=None, special_token_ids=SPECIAL_IDS) as seen:
        model(**inputs)
    found = plain(seen).loc[0]
    wanted = probe_layers(model, inputs, special_token_ids=SPECIAL_IDS)
    wanted = flat(wanted).set_index(["layer", "group"]).reindex(found.index)
    for column in (*COLUMNS, "tokens"):
        np.testing.assert_allclose(found[column], wanted[column], rtol=1e-6, err_msg=column)
    ids = inputs["input_ids"]
    videos = int((ids == VIDEO).sum())
    counts = found.loc[0, "tokens"]
    assert counts["video"] == videos > 0
    assert counts["visual"] == videos + int((ids == IMAGE).sum())


def test_a_sample_of_a_weight_has_its_norm() -> None:
    """Else a part's large matrices, of which few numbers are read, would count for little."""
    large, small = (nn.Parameter(torch.full((side, side), 3.0)) for side in (200, 4))
    sampled = _sampled([large, small])
    assert len(sampled) < 6000
    for taken, weight in ((sampled[:-16], large), (sampled[-16:], small)):
        assert float(taken.norm()) == pytest.approx(float(weight.norm()), rel=1e-4)


def test_a_sample_of_a_matrix_is_of_all_its_columns() -> None:
    """Every 256th number of a square of 1024 is one of four columns, where only these move."""
    weight = torch.zeros(1024, 1024)
    weight[:, ::256] = 1.0
    found = float(_sampled([nn.Parameter(weight)]).norm())
    assert found == pytest.approx(float(weight.norm()), rel=0.1)


@pytest.mark.parametrize(
    ("model_type", "sampled"), [("llava", False), ("llava", True), ("qwen2_5_vl", False)]
)
def test_gradients_and_updates_are_those_of_numpy(
    model_type: str, sampled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The projector of Qwen2.5-VL lies inside its encoder, and is no part of it."""
    if not sampled:
        monkeypatch.setattr("normprobe.extensions.training.measure._SAMPLED", 10**9)
    model = tiny_model(model_type).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    parts = {role: [*part.module.parameters()] for role, part in find_parts(model)}
    projector = {*parts["projector"]}
    parts["vision_encoder"] = [w for w in parts["vision_encoder"] if w not in projector]
    expected: dict[str, tuple[float, float]] = {}

    def read(*_: Any) -> None:
        for role, weights in parts.items():
            arrays = [
                (w.dim() > 1, w.grad.double().numpy(), w.detach().double().numpy())
                for w in weights
                if w.grad is not None
            ]
            gradient = np.sqrt(sum((grad**2).sum() for _, grad, _ in arrays))
            everything = [w.detach().double().numpy() for w in weights if w.dim() > 1]
            moved = np.sqrt(sum(((0.01 * grad) ** 2).sum() for wide, grad, _ in arrays if wide))
            size = np.sqrt(sum((weight**2).sum() for weight in everything))
            expected.setdefault(role, (gradient, moved / size))

    handle = optimizer.register_step_pre_hook(read)
    with watch(model, 10, output=None) as seen:
        train(model, 2, accumulate=2, optimizer=optimizer)
    handle.remove()
    found = flat(seen.run().tables["gradients"]).set_index("part")
    assert set(found.index) == set(expected)
    for role, numbers in expected.items():
        row = found.loc[role, ["gradient_norm_mean", "update_ratio"]]
        rough = 0.1 if role == "text_embedding" else 0.02  # a batch moves few of its rows
        rtol = [1e-4, rough if sampled else 1e-4]
        assert bool((np.abs(row.astype(float) / np.array(numbers) - 1) < rtol).all()), role


def test_steps_of_another_model_s_optimizer_are_none_of_the_training() -> None:
    """It steps before each forward, and the model after two of them."""
    model, other = tiny_model("llava").train(), nn.Linear(2, 2)
    own, others = (torch.optim.SGD(each.parameters(), lr=0.01) for each in (model, other))
    projector, expected = find_parts(model).projector.module, list[float]()

    def call(inputs: Mapping[str, Any]) -> Any:
        others.step()
        return model(**inputs)

    def read(*_: Any) -> None:
        gradients = [weight.grad.double().numpy() for weight in projector.parameters()]
        expected.append(float(np.sqrt(sum((each**2).sum() for each in gradients))))

    handle = own.register_step_pre_hook(read)
    with watch(model, 1, output=None) as seen:
        train(model, 3, call=call, accumulate=2, optimizer=own)
    handle.remove()
    found = select(seen.run().tables["gradients"], "gradient_norm")
    found = found.set_index(["part", "training_step"])["mean"]
    assert list(found["projector"].index) == [0, 1, 2]
    np.testing.assert_allclose(found["projector"], expected, rtol=1e-4)


def in_closure(model: nn.Module, step: Callable[[torch.optim.Optimizer, int], Any]) -> None:
    """Forward and backward run inside the optimizer's step."""
    made = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(3):
        step(made, number)


def in_backward(model: nn.Module, lr: float = 0.01) -> None:
    """An optimizer a weight steps as soon as its gradient is there, and clears it."""
    made = {weight: torch.optim.SGD([weight], lr=lr) for weight in model.parameters()}

    def step(weight: torch.Tensor) -> None:
        made[weight].step()
        made[weight].zero_grad()

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(step)
    for number in range(3):
        model(**batch(model, number)).loss.backward()


def by_closure(model: nn.Module, made: torch.optim.Optimizer, number: int) -> Callable[[], Any]:
    def closure() -> Any:
        made.zero_grad()
        loss = model(**batch(model, number)).loss
        loss.backward()
        return loss

    return closure


#: Where the optimizer steps, beside behind the backward.
STEPPING: dict[str, Callable[[nn.Module], None]] = {
    "closure": lambda model: in_closure(
        model, lambda made, number: made.step(by_closure(model, made, number))
    ),
    "named closure": lambda model: in_closure(
        model, lambda made, number: made.step(closure=by_closure(model, made, number))
    ),
    "in backward": in_backward,
}


@pytest.mark.parametrize("way", STEPPING)
def test_gradients_and_updates_are_read_wherever_the_optimizer_steps(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of float64, by hand, with plain SGD: an update is the gradient times the rate."""
    monkeypatch.setattr("normprobe.extensions.training.measure._SAMPLED", 10**9)
    twin, expected = tiny_model("llava").train(), {}
    for number in range(3):
        twin.zero_grad()
        twin(**batch(twin, number)).loss.backward()
        for role, part in find_parts(twin):
            weights = [*part.module.parameters()]
            gradients = [w.grad.double().numpy() for w in weights if w.grad is not None]
            wide = [gradient for gradient in gradients if gradient.ndim > 1]
            size = sum(float(w.detach().double().square().sum()) for w in weights if w.dim() > 1)
            moved = 0.01 * np.sqrt(sum((g**2).sum() for g in wide) / size)
            norm = np.sqrt(sum((g**2).sum() for g in gradients))
            expected[number, role] = norm, moved
        with torch.no_grad():
            for weight in twin.parameters():
                if weight.grad is not None:
                    weight.add_(weight.grad, alpha=-0.01)
    model = tiny_model("llava").train()
    with watch(model, 1, output=None) as seen:
        STEPPING[way](model)
    assert all(map(torch.equal, twin.parameters(), model.parameters()))
    assert seen.alarms == []
    found = flat(seen.run().tables["gradients"]).set_index(["training_step", "part"])
    assert set(found.index) == set(expected)
    for key, (norm, moved) in expected.items():
        assert found.loc[key, "gradient_norm_mean"] == pytest.approx(norm, rel=1e-4)
        assert found.loc[key, "update_ratio"] == pytest.approx(moved, rel=1e-3)


def test_gradients_of_a_scaler_are_unscaled_for_each_of_several_optimizers() -> None:
    """Each is unscaled where its own optimizer steps."""
    model = tiny_model("llava").train()
    halves = [[*model.parameters()][::2], [*model.parameters()][1::2]]
    optimizers = [torch.optim.SGD(half, lr=0.01) for half in halves]
    projector, norms = find_parts(model).projector.module, list[float]()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with watch(model, 1, output=None) as seen:
        scaler.scale(model(**batch(model, 0)).loss).backward()
        squares = [float(weight.grad.double().square().sum()) for weight in projector.parameters()]
        norms.append(np.sqrt(sum(squares)) / 1024)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
    found = select(seen.run().tables["gradients"], "gradient_norm", part="projector")["mean"]
    assert list(found) == pytest.approx(norms, rel=1e-4)


def test_gradients_that_are_cleared_inside_the_backward_are_said_to_be_unread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = tiny_model("llava").train()
    idle = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(weight: torch.Tensor) -> None:
        weight.data.add_(weight.grad, alpha=-0.01)
        weight.grad = None

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(step)
    with watch(model, 1, output=None) as seen:
        for number in range(3):
            model(**batch(model, number)).loss.backward()
            idle.step()
    assert seen.alarms == []
    assert caplog.text.count("no weight had a gradient when the optimizer stepped") == 1
    assert set(seen.run().table["training_step"]) == {0, 1, 2}
    assert seen.run().tables["gradients"].empty


def checkpointed(reentrant: bool) -> Callable[[nn.Module], object]:
    how = {"use_reentrant": reentrant}
    return lambda model: model.gradient_checkpointing_enable(how)


def with_lora(model: nn.Module) -> nn.Module:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=4))


def with_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3


def frozen(model: nn.Module) -> None:
    find_parts(model).vision_encoder.module.requires_grad_(False)


#: How people train: what is done to the model, and how it is called.
WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "as it is": lambda model: model,
    "gradient checkpointing": checkpointed(False),
    "reentrant checkpointing": checkpointed(True),
    "LoRA": with_lora,
    "dropout": with_dropout,
    "frozen encoder": frozen,
    "aligned": align_norms,
    "bfloat16": lambda model: model.to(torch.bfloat16),
}


@pytest.mark.parametrize(
    ("model_type", "way"),
    [
        *(("llava_next", way) for way in WAYS),
        *(
            pytest.param("qwen3_vl", way, marks=pytest.mark.slow)
            for way in ("as it is", "gradient checkpointing", "LoRA")
        ),
    ],
)
def test_weights_are_the_same_to_the_last_bit(model_type: str, way: str) -> None:
    ends = []
    for watched in (False, True):
        torch.manual_seed(0)
        made = WAYS[way](tiny_model(model_type))
        model = (made if hasattr(made, "peft_config") else tiny_model(model_type)).train()
        if not hasattr(made, "peft_config"):
            WAYS[way](model)
        torch.manual_seed(1)
        if watched:
            with watch(model, 1, output=None) as seen:
                train(model, 20, accumulate=2)
            table = seen.run().table
            assert table["training_step"].nunique() == 20
            cells = ["training_step", "layer", "group"]
            assert table.groupby([*cells, "quantity"]).size().max() == 1
            table = flat(table)
            assert set(table[table["layer"] > 0]["angle_mean"].notna()) == {True}
        else:
            train(model, 20, accumulate=2)
        ends.append([weight.detach().clone() for weight in model.parameters()])
    assert all(map(torch.equal, *ends))


@pytest.mark.parametrize("model_type", ["llava", "llava_next"])
def test_autocast(model_type: str) -> None:
    """Its cache of weights keeps none that was cast where nothing has a gradient."""
    ends, states = [], list[torch.Tensor]()
    for watched in (False, True):
        model = tiny_model(model_type).train()

        def call(inputs: Mapping[str, Any], model: nn.Module = model) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return model(**inputs)

        if watched:
            with watch(model, 1, output=None) as seen:
                train(model, 4, call=call)
        else:
            find_parts(model).decoder_layers.module[0].register_forward_pre_hook(
                lambda module, args: states.append(args[0].detach().double())
            )
            train(model, 4, call=call)
        ends.append([weight.detach().clone() for weight in model.parameters()])
    assert all(map(torch.equal, *ends))
    inputs = batch(model, 0)
    text = (inputs["input_ids"] != model.config.image_token_id) & inputs["attention_mask"].bool()
    mean = float(states[0][text].norm(dim=-1).mean())
    found = plain(seen).loc[0].loc[(0, "text"), "norm_mean"]
    assert found == pytest.approx(mean, rel=1e-6)


def test_autocast_takes_no_precision_from_what_tells_the_parts(
    specimen_inputs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """In bfloat16 the projector's rows were those of no visual token: nothing was measured."""
    model, inputs = specimen_inputs
    with watch(model.train(), 1, output=None) as seen, torch.autocast("cpu", torch.bfloat16):
        model(**inputs).loss.backward()
    assert "not measured" not in caplog.text
    assert plain(seen).loc[0].loc[(0, "visual"), "norm_mean"] > 10


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled(backend: str) -> None:
    ends = []  # inductor fuses what stands in one graph: with other graphs it rounds otherwise
    same = partial(torch.allclose, rtol=0, atol=1e-6) if backend == "inductor" else torch.equal
    for watched in (False, True):
        torch._dynamo.reset()
        model = tiny_model("qwen2").train()
        compiled = torch.compile(model, backend=backend)

        def call(inputs: Mapping[str, Any], compiled: Any = compiled) -> Any:
            return compiled(**inputs)

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        if watched:
            with watch(compiled, 2, output=None) as seen:
                train(model, 4, call=call, optimizer=optimizer)
            assert sorted(plain(seen).index.unique("training_step")) == [0, 2]
        else:
            train(model, 4, call=call, optimizer=optimizer)
        ends.append([weight.detach().clone() for weight in model.parameters()])
    assert all(map(same, *ends))


def test_packed_prompts_and_prompts_without_pictures() -> None:
    model = tiny_model("qwen2_5_vl").train()
    samples = [dict(sample) for sample in tiny_samples(model, 3)]
    packed = {
        "input_ids": torch.cat([sample["input_ids"] for sample in samples], dim=1),
        "pixel_values": torch.cat([sample["pixel_values"] for sample in samples]),
        "image_grid_thw": torch.cat([sample["image_grid_thw"] for sample in samples]),
        "position_ids": torch.cat(
            [torch.arange(sample["input_ids"].shape[1])[None] for sample in samples], dim=1
        ),
    }
    text = {"input_ids": torch.tensor([[5, 60, 61, 62]])}
    with watch(model, 1, output=None) as seen:
        for inputs in (packed, text):
            model(**inputs, labels=inputs["input_ids"]).loss.backward()
            seen.end_step()
            seen.step += 1
    wanted = flat(probe_layers(model, packed, special_token_ids=[])).set_index(["layer", "group"])
    found = plain(seen)
    for column in COLUMNS:
        got = found.loc[0][column]
        np.testing.assert_allclose(got, wanted[column].reindex(got.index), rtol=1e-6)
    assert set(found.loc[1].index.unique("group")) == {"text"}
    assert seen.alarms == []


def without_pictures(model: nn.Module, seed: int) -> dict[str, Any]:
    ids = batch(model, seed)["input_ids"].clone()
    ids[ids == model.config.image_token_id] = 60
    return {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_due_step_without_pictures_takes_the_next_batch_that_has_some(accumulate: int) -> None:
    """Of the same step, else of a later one; other steps are not measured."""
    model, given = tiny_model("llava").train(), list[dict[str, Any]]()

    def call(inputs: Mapping[str, Any]) -> Any:
        number = len(given)
        given.append(without_pictures(model, 7) if number in (0, 4, 5) else dict(inputs))
        if number == 1:
            expected["norm"] = probe_layers(model, given[1])
        return model(**given[-1])

    expected: dict[str, pd.DataFrame] = {}
    with watch(model, 4, output=None) as seen:
        train(model, 8, call=call, accumulate=accumulate)
    found = seen.run().table
    where = select(found, "norm", layer=2, group="visual")
    steps = {1: [1, 6], 2: [0, 4]}[accumulate]
    assert list(where["training_step"]) == steps
    assert list(found["training_step"].unique()) == {1: [0, 1, 4, 6], 2: [0, 4]}[accumulate]
    wanted = select(expected["norm"], "norm", layer=2, group="visual")["mean"]
    assert float(where["mean"].iloc[0]) == pytest.approx(float(wanted.iloc[0]), rel=1e-6)
    assert "never seen" not in str(seen.run().verdict)


def test_a_training_without_pictures_says_so(tmp_path: Path) -> None:
    model = tiny_model("llava").train()
    with watch(model, 2, output=tmp_path / "run") as seen:
        train(model, 4, call=lambda inputs: model(**without_pictures(model, 1)))
    assert list(seen.run().table["training_step"].unique()) == [0, 2]
    run = load_run(tmp_path / "run")
    assert str(run.verdict).startswith("Visual tokens were never seen.")
    assert "no step that was measured had pictures" in run.record["warnings"]


WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim"}


class _Waits(TorchDispatchMode):
    """Counts what makes a host wait for a device, and copies to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.calls += 1
        self.seen += name in WAITING or (name == "_to_copy" and "device" in (kwargs or {}))
        return func(*args, **(kwargs or {}))


def test_steps_that_are_not_due_compute_nothing_and_wait_for_nothing() -> None:
    counts = []
    for every in (None, 3):
        model = tiny_model("llava_next").train()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        seen = None if every is None else watch(model, every, output=None)
        counted = []
        for step in range(6):
            with _Waits() as mode:
                model(**batch(model, step)).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            counted.append((mode.seen, mode.calls))
        if seen is not None:
            seen.close()
        counts.append(counted)
    bare, watched = counts
    for step in (2, 5):  # whether the loss is finite stays on the device
        assert watched[step][0] == bare[step][0]
        assert watched[step][1] - bare[step][1] < 20
    for step in (0, 3):  # and what is left of them is done where the next forward begins
        assert watched[step][1] > bare[step][1]


def test_nothing_is_left_behind() -> None:
    from torch.optim import optimizer as optimizers

    model = tiny_model("llava").train()
    hooks = ("_forward_hooks", "_forward_pre_hooks")
    everywhere = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")

    def count() -> list[int]:
        own = [len(getattr(module, name)) for module in model.modules() for name in hooks]
        return own + [len(getattr(optimizers, name)) for name in everywhere]

    model(**batch(model, 0))  # transformers installs hooks of its own
    before = count()
    watch(model, output=None).close()
    assert count() == before
    with pytest.raises(ZeroDivisionError), watch(model, output=None) as seen:
        model(**batch(model, 0))
        _ = 1 / 0
    assert count() == before
    assert len(seen.run().table)
    seen.close()
    dropped = tiny_model("llava")
    watch(dropped, output=None)
    del dropped
    gc.collect()
    assert count() == before


@pytest.mark.parametrize("way", ["deepcopy", "averaged", "saved"])
def test_copies_of_a_model_are_not_watched(way: str, tmp_path: Path) -> None:
    model, inputs = tiny_model("llava").train(), batch(tiny_model("llava"), 5)
    with watch(model, 1, output=None) as seen:
        if way == "saved":  # of a model that has run, transformers' own hooks cannot be saved
            torch.save(model, tmp_path / "model.pt")
            assert b"normprobe.extensions" not in (tmp_path / "model.pt").read_bytes()
            copy: Any = torch.load(tmp_path / "model.pt", weights_only=False)
        loss = model(**inputs).loss
        if way == "deepcopy":
            copy = deepcopy(model)
        elif way == "averaged":
            copy = torch.optim.swa_utils.AveragedModel(model).module
        loss.backward()
        seen.end_step()
        seen.step = 1
        assert torch.equal(copy(**inputs).loss, loss)
    assert set(seen.run().table["training_step"]) == {0}
    copy(**inputs)


def test_an_exception_leaves_a_run_that_is_partial(tmp_path: Path) -> None:
    model = tiny_model("llava").train()
    with pytest.raises(ZeroDivisionError), watch(model, 1, output=tmp_path / "run"):
        train(model, 3, before=lambda step: 1 // (2 - step))
    run = load_run(tmp_path / "run")
    assert run.record["status"] == "partial"
    assert set(run.samples["training_step"]) == {0, 1}
    assert "No alarm." in str(run.verdict)
    with watch(model, 1, output=tmp_path / "run") as second:
        second.step = 2
        model(**batch(model, 20))
    assert load_run(tmp_path / "run").record["status"] == "complete"


def test_a_loss_that_is_not_finite_is_told_on_any_step() -> None:
    """At the next step that is due, with its own number."""
    model, told, sound = tiny_model("llava").train(), dict[int, int](), list[Any]()

    def report(module: nn.Module, args: Any, output: Any) -> Any:
        sound.append(SimpleNamespace(loss=output.loss))
        output.loss = output.loss * (torch.inf if seen.step == 2 else 1.0)
        return output

    def call(inputs: Mapping[str, Any]) -> Any:
        model(**inputs)
        return sound[-1]

    model.register_forward_hook(report)
    with watch(model, 4, output=None) as seen:
        train(model, 7, call=call, before=lambda step: told.update({step: len(seen.alarms)}))
    (alarm,) = seen.alarms
    assert alarm == (2, "nonfinite", "loss", "the loss is not finite")
    assert told[5] == 0 and told[6] == 1


def test_a_run_folder_that_reads_as_any_run(tmp_path: Path) -> None:
    logged: list[dict[str, float]] = []
    model = tiny_model("llava_next").train()
    with watch(model, 2, logged.append, output=tmp_path / "run", keys=["*"]) as seen:
        train(model, 5)
    run = load_run(tmp_path / "run")
    assert run.record["status"] == "complete"
    assert run.record["command"] == "training"
    assert str(run.verdict) == str(seen.run().verdict)
    assert run.verdict.headline.startswith("Visual tokens enter the decoder with ")
    assert "No alarm." in str(run.verdict)
    assert list(run.figures()) == ["training"]
    assert "training step" in run.page()
    table = flat(run.table).set_index(["training_step", "layer", "group"])
    gradients = flat(run.tables["gradients"]).set_index("training_step")
    assert [values["normprobe/step"] for values in logged] == [0, 2, 4]
    for values in logged:
        step = int(values["normprobe/step"])
        key = (step, 2, "visual")
        assert values["normprobe/layers/visual/norm/2"] == table.loc[key, "norm_mean"]
        for _, row in gradients.loc[[step]].iterrows():
            told = [values[f"normprobe/{name}/{row['part']}"] for name in ("gradient", "update")]
            assert told == pytest.approx(
                row[["gradient_norm_mean", "update_ratio"]].tolist(), rel=1e-6
            )
        assert "projector" in set(gradients.loc[step, "part"])
    compared = normprobe.compare([run, seen.run().save(tmp_path / "copy")])
    assert "disparity_last_step" in set(compared.table["quantity"])
    assert compared.figures() and compared.page()


def test_a_run_without_an_optimizer_of_torch_says_so(tmp_path: Path) -> None:
    model = tiny_model("llava").train()
    with watch(model, output=tmp_path / "run"):
        model(**batch(model, 0)).loss.backward()
    run = load_run(tmp_path / "run")
    assert "no step of an optimizer of torch was seen" in " ".join(run.record["warnings"])
    assert run.tables["gradients"].empty
    assert list(run.figures()) == ["training"]


def test_layers_whose_weights_are_kept_elsewhere_are_an_error() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = FullyShardedDataParallel(tiny_model("llava"), device_id=torch.device("cpu"))
        with pytest.raises(NormprobeError, match="FSDP1 keeps the weights of"):
            watch(model, output=None)
    finally:
        torch.distributed.destroy_process_group()


def test_a_tensorboard_writer_gets_scalars() -> None:
    class Writer:
        def __init__(self) -> None:
            self.scalars: list[tuple[str, float, int]] = []

        def add_scalar(self, name: str, value: float, step: int) -> None:
            self.scalars.append((name, value, step))

    writer, model = Writer(), tiny_model("llava").train()
    with watch(model, 2, writer, output=None):
        train(model, 3)
    steps = {step for name, _, step in writer.scalars if name == "normprobe/gradient/projector"}
    assert steps == {0, 2}


def test_an_alarm_stops_the_loop_where_it_is_asked_to() -> None:
    model = tiny_model("llava").train()
    find_parts(model).projector.module.register_forward_hook(lambda _, args, out: out.detach())
    seen = watch(model, 1, output=None, on_alarm="stop")
    with pytest.raises(NormprobeError, match="step 0: the projector"):
        train(model, 3)
    seen.close()


def no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def broken_logger(values: dict[str, float]) -> None:
    raise ConnectionError("no route to the tracker")


@pytest.mark.parametrize(
    "fails",
    [
        *("disk", "logger"),
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("folder", "reader")),
    ],
)
def test_what_fails_beside_a_training_does_not_end_it(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The weights are those of a training that nobody watched; it is said once."""
    monkeypatch.setattr("normprobe.extensions.training.watch._WRITTEN_EVERY", 0.0)
    model = tiny_model("llava").train()
    train(model, 4)
    expected = [weight.detach().clone() for weight in model.parameters()]

    def fail(step: int) -> None:
        if step != 2:
            return
        if fails == "folder":
            rmtree(tmp_path / "run")
        elif fails == "disk":
            monkeypatch.setattr(RunFolder, "append", no_space)
        elif fails == "reader":
            monkeypatch.setattr(ForwardReader, "leave", no_space)

    model = tiny_model("llava").train()
    log = broken_logger if fails == "logger" else None
    with watch(model, 1, log, output=tmp_path / "run") as seen:
        train(model, 4, before=fail)
    assert all(map(torch.equal, expected, model.parameters()))
    if fails == "logger":
        assert caplog.text.count("the logger failed and gets no more") == 1
        assert set(plain(seen).index.get_level_values(0)) >= {0, 3}
        return
    assert seen.gave_up
    assert caplog.text.count("nothing is measured any more, the training goes on") == 1
    if fails != "folder":
        steps = load_run(tmp_path / "run").samples["training_step"]
        assert set(steps) == ({0} if fails == "disk" else {0, 1})


def test_states_that_a_scaler_would_skip_are_judged_all_the_same() -> None:
    """No optimizer step follows: GradScaler saw what is not finite."""
    model = tiny_model("llava").train()
    with watch(model, 1, output=None) as seen:
        for _ in range(2):
            inputs = batch(model, 0)
            inputs["pixel_values"] = inputs["pixel_values"] * torch.nan
            model(**inputs)
        assert [alarm.name for alarm in seen.alarms] == ["nonfinite"]


def test_states_that_are_not_finite_are_counted() -> None:
    model = tiny_model("llava").train()
    inputs = batch(model, 0)
    visual = int((inputs["input_ids"] == model.config.image_token_id).sum())
    with watch(model, 1, output=None) as seen:
        model(**inputs | {"pixel_values": inputs["pixel_values"] * torch.nan})
        seen.end_step()
    entered = flat(seen.run().table).query("layer == 0").set_index("group")
    assert entered.loc["visual", ["tokens", "nonfinite"]].tolist() == [0, visual]
    assert entered.loc["text", "nonfinite"] == 0


def test_what_is_wrong_in_several_steps_is_told_once() -> None:
    model = tiny_model("llava").train()
    with watch(model, 1, output=None) as seen:
        for step in range(3):
            inputs = batch(model, step)
            inputs["pixel_values"] = inputs["pixel_values"] * torch.nan
            model(**inputs)
            seen.end_step()
            seen.step += 1
    assert seen.run().table["training_step"].nunique() == 3
    assert [(alarm.step, alarm.name) for alarm in seen.alarms] == [(0, "nonfinite")]


def test_a_training_that_goes_on_keeps_its_alarms(tmp_path: Path) -> None:
    model = tiny_model("llava").train()
    with watch(model, 1, output=tmp_path / "run") as first:
        inputs = batch(model, 0)
        model(**inputs | {"pixel_values": inputs["pixel_values"] * torch.nan})
    with watch(model, 1, output=tmp_path / "run") as second:
        second.step = 1
        model(**batch(model, 10))
    assert second.alarms == first.alarms
    run = load_run(tmp_path / "run")
    assert list(run.table["training_step"].unique()) == [0, 1]
    assert [*run.tables["alarms"].itertuples(index=False, name=None)] == first.alarms
    assert len(first.alarms) == 1


def test_a_training_goes_on_in_its_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model("llava").train()
    kept: dict[int, dict[str, torch.Tensor]] = {}

    def keep(step: int) -> None:
        kept[step] = {name: value.clone() for name, value in model.state_dict().items()}

    with watch(model, 1, output=tmp_path / "run"):
        train(model, 4, before=keep)
    first = load_run(tmp_path / "run").table
    for state, warns in ((kept[2], False), (kept[0], True)):
        model.load_state_dict(state)
        if warns:
            with torch.no_grad():
                model.get_input_embeddings().weight.mul_(1.5)
        with watch(model, 1, output=tmp_path / "run") as seen:
            seen.step = 2
            model(**batch(model, 20))
        found = load_run(tmp_path / "run").table
        assert list(found["training_step"].unique()) == [0, 1, 2]
        assert found.query("training_step < 2").equals(first.query("training_step < 2"))
        assert ("Did the weights load?" in caplog.text) == warns


@pytest.mark.parametrize("loaded", [True, False])
def test_weights_that_did_not_load_are_told_without_a_step_in_common(
    loaded: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Measured at steps 0, 4, 8; the training goes on at step 6."""
    model = tiny_model("llava").train()
    began = deepcopy(model.state_dict())
    with watch(model, 4, output=tmp_path / "run"):
        train(model, 6)
    if not loaded:
        model.load_state_dict(began)
    with watch(model, 4, output=tmp_path / "run") as seen:
        seen.step = 6
        train(model, 1)
        told = "step 6: the weights of decoder layers and projector and text embedding and vision"
        assert (told in caplog.text) == (not loaded)
        train(model, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"every": 0}, "every=0"), ({"on_alarm": "shout"}, "on_alarm='shout'")],
)
def test_impossible_options_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(NormprobeError, match=message):
        watch(tiny_model("llava"), output=None, **options)


def test_a_model_without_decoder_layers_is_an_error_before_the_training() -> None:
    with pytest.raises(NormprobeError, match="decoder"):
        watch(tiny_model("clip_vision_model"), output=None)


def test_a_state_that_is_changed_between_two_layers_is_what_enters_the_next() -> None:
    """As DeepStack adds features to visual rows."""
    model = tiny_model("llava")
    batch = MeasuredModel(model, find_parts(model), SPECIAL_IDS).batch(tiny_inputs(model, 1))
    state = batch.model.decoder_input(tiny_inputs(model, 1))
    reader = ForwardReader(batch)
    reader.enter(state)
    left = state * 2.0
    reader.leave(1, left)
    left.add_(1.0)
    reader.enter(left)
    reader.leave(2, left * 2.0)
    assert not reader.skipped
